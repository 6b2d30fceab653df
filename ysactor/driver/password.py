"""The password of one login, from whatever the options say to the text that is sent."""

from __future__ import annotations

from ..config import Config
from ..servers import HostPort
from .protocol import NoPassword, Phase


async def password_of(config: Config, host: HostPort) -> str | None:
    """The password for a login on this server, or None if there is none. A function is called once.

    Raises `NoPassword` of LOGIN when the function raises, with its error as the cause, or gives what is no password.
    Nothing that it raises holds the password, nor do the variables of its frames.
    """
    secret = config.password_for(host)
    if secret is None:
        return None
    try:
        revealed: object = await secret.reveal()
    except Exception as error:
        raise NoPassword(Phase.LOGIN, f"the password function raised {type(error).__name__}") from error
    text = _text(revealed)
    wrong = type(revealed).__name__
    del revealed  # a traceback that prints variables would show it
    if text is not None:
        return text
    what = f"the password function returned {wrong}, not text or bytes"
    raise NoPassword(Phase.LOGIN, "the password is not UTF-8, or holds a NUL" if wrong in {"str", "bytes"} else what)


def _text(password: object) -> str | None:
    """None for what cannot be sent. The coder's errors hold all of what they could not read, so they end here."""
    try:
        match password:
            case bytes():
                text = password.decode()
            case str():
                text = str(password)
                text.encode()
            case _:
                return None
    except UnicodeError:
        return None
    return None if "\0" in text else text

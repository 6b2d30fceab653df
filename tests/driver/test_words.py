"""The last words of a server, in whatever part of them was kept."""

from __future__ import annotations

import pytest

from ysactor.driver.words import TAIL, last_words, refusal


def message(kind: bytes, **fields: str) -> bytes:
    content = b"".join(name.encode() + text.encode() + b"\0" for name, text in fields.items()) + b"\0"
    return kind + (len(content) + 4).to_bytes(4, "big") + content


FATAL = message(b"E", S="FATAL", V="FATAL", C="57P01", M="terminating connection", F="postgres.c")
CRASH = message(b"N", S="WARNING", V="WARNING", C="57P02", M="terminating because of a crash", D="Exit.")


@pytest.mark.parametrize("before", [b"", b"Z\0\0\0\5I", b"ENEN" * 300, CRASH[:-3]])
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (FATAL, "terminating connection"),
        (message(b"E", S="ПАНИКА", V="PANIC", C="XX000", M="all is lost"), "all is lost"),
        (message(b"E", S="FATAL", C="57P01", M="before 9.6 there was no V"), "before 9.6 there was no V"),
        (CRASH, "terminating because of a crash"),
        (message(b"E", S="ERROR", V="ERROR", C="22012", M="division by zero"), None),
        (message(b"N", S="WARNING", V="WARNING", C="01000", M="FATAL is what it is not"), None),
        (FATAL + b"Z\0\0\0\5I", None),
        (FATAL[:-1], None),
        (b"", None),
    ],
)
def test_the_message_after_which_a_server_hangs_up_is_found_at_the_end_of_what_came(
    before: bytes, end: bytes, words: str | None
) -> None:
    assert last_words((before + end)[-TAIL:]) == words


@pytest.mark.parametrize("before", [b"", b"R\0\0\0\x08\0\0\0\5", b"ENEN" * 300, CRASH])
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (FATAL, ("terminating connection", "57P01")),
        (message(b"E", S="ERROR", V="ERROR", C="08P01", M="from a pooler"), ("from a pooler", "08P01")),
        (FATAL.replace(b"terminating", b"\xe9\xe8\xfcminating"), ("\ufffd\ufffd\ufffdminating connection", "57P01")),
        (message(b"E", S="FATAL", M="without a code"), None),
        (CRASH, None),
        (FATAL[:-1], None),
        (b"", None),
    ],
)
def test_the_error_that_ends_a_login_is_found_whatever_its_encoding(
    before: bytes, end: bytes, said: tuple[str, str] | None
) -> None:
    assert refusal((before + end)[-TAIL:]) == said

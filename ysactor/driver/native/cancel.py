"""A cancel request, sent the way the session itself came."""

from __future__ import annotations

import trio

from ...config import TlsMode
from ...servers import HostPort
from ..protocol import ConnectFailure, Phase
from .dialling import Peer, receive, redial, secure, send_all
from .messages import cancel_request


async def send_cancel(peer: Peer, host: HostPort, pid: int, secret: int | bytes) -> None:
    """Ask the server to cancel what the process runs; return when the server has closed the request's connection.

    By then it has signalled the process, so no later statement is hit. To the same address, over TLS if the session
    is, checked for the same name. The caller bounds it. Raises `ConnectFailure`, also when TLS is refused this time.
    """
    sock = await redial(peer)
    try:
        parts = await secure(sock, host, peer.tls)
        if parts is None and peer.tls.mode is not TlsMode.OFF:
            raise ConnectFailure(Phase.TLS, "the server refuses TLS for the cancel request")
        request = cancel_request(pid, secret)
        if parts is not None:
            parts.tls.write(request)
            request = parts.outgoing.read()
        try:
            await send_all(sock, request)
            while await receive(sock):
                pass
        except ConnectionError:
            pass  # some servers reset the connection when they have read the request
    finally:
        trio.lowlevel.notify_closing(sock)
        sock.close()

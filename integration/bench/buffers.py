"""The pages that sockets' buffers are made of, brought into one state before a work that moves much data.

Linux keeps pages that were freed with the core that freed them, and lets that grow to some hundred MB while much is
sent from one core to another, as from the client's to the server's. Until then the sender gets other pages all the
time. In a virtual machine one that its host had taken back costs several µs at its first touch. Whoever came first
after a rest paid for that: a COPY in of 100 MB by ysactor, first in its row, took 0.97 s of system time where 0.24 is
usual, half of all its time in `_copy_from_iter`, and the machine had 276 MB less of free memory after it.
"""

from __future__ import annotations

import os
import socket
from threading import Thread, get_native_id

SIZE = 512 << 20
"""Bytes each way. One core was seen to keep 432 MiB at most, on a machine of 24 GiB."""


def warm(one: int, other: int, size: int = SIZE) -> int:
    """Send so much over a socket from one core to the other, and as much back; how much was received."""
    return _send(one, other, size) + _send(other, one, size)


def _send(source: int, target: int, size: int) -> int:
    sending, receiving = socket.socketpair()
    piece = bytes(64 << 10)
    received = 0

    def send() -> None:
        with sending:
            # Linux holds each thread by itself: this one only.
            os.sched_setaffinity(get_native_id(), {source})
            for _ in range(size // len(piece)):
                sending.sendall(piece)

    def receive() -> None:
        nonlocal received
        buffer = bytearray(len(piece))
        with receiving:
            os.sched_setaffinity(get_native_id(), {target})
            while count := receiving.recv_into(buffer):
                received += count

    threads = [Thread(target=send), Thread(target=receive)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return received

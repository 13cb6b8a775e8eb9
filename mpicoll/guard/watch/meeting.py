"""Where the watchers of a job meet. This needs no asyncio, which a program loads with its first communicator."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass


@dataclass(frozen=True)
class Meeting:
    """Where the judge of a job listens, the token by which it knows who may speak to it, and its rank in the world."""

    addresses: tuple[str, ...]
    port: int
    token: str
    rank: int = 0

    @property
    def on_one_node(self) -> bool:
        """Whether only the processes of one node can reach it."""
        return self.addresses == ("127.0.0.1",)


def listen(one_node: bool, rank: int = 0) -> tuple[socket.socket, Meeting]:
    """A socket at which this ``rank`` of the world listens, and how others find it: within this node alone, or from
    other nodes."""
    sock = socket.create_server(("127.0.0.1" if one_node else "", 0), backlog=1024)
    addresses = ("127.0.0.1",) if one_node else _addresses()
    return sock, Meeting(addresses, sock.getsockname()[1], secrets.token_hex(16), rank)


def _addresses() -> tuple[str, ...]:
    """The addresses of this node, those first that other nodes are likely to reach."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        found = []
    named = [str(each[4][0]) for each in found]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: it asks which address leads out of this node
            named.append(sock.getsockname()[0])
        except OSError:
            pass  # there is no such way, and the names above must do
    ordered = sorted(named, key=lambda address: address.startswith("127."))
    return tuple(dict.fromkeys([*ordered, "127.0.0.1"]))

"""Where the coordinator of a job listens. ``mpicoll run`` loads this before it starts the ranks, so it loads little."""

from __future__ import annotations

import os
import resource
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from mpicoll.errors import LaunchError

_OTHER_FILES = 8  # the files of the watcher's own, with those that are written at the end


@dataclass(frozen=True)
class Rendezvous:
    """Where the coordinator of a job listens, the job's token, and its rank in the world: None in ``mpicoll run``."""

    addresses: tuple[str, ...]
    port: int
    token: str
    rank: int | None = 0

    def __str__(self) -> str:
        return f"{','.join(self.addresses)}:{self.port}:{self.token}"

    @classmethod
    def given(cls, text: str) -> Rendezvous:
        """That of ``mpicoll run``, which has told it as this text."""
        addresses, port, token = text.split(":")
        return cls((*addresses.split(","),), int(port), token, None)

    @property
    def on_one_node(self) -> bool:
        """Whether only the processes of one node can reach it."""
        return self.addresses == ("127.0.0.1",)


def listen(one_node: bool, rank: int | None = 0, ranks: int = 1) -> tuple[socket.socket, Rendezvous]:
    """A socket at which this ``rank`` of the world listens, or ``mpicoll run`` if that is None, and how others find it.
    So many ``ranks`` connect: raises LaunchError if this process may not open so many files."""
    _make_room(rank, ranks)
    sock = socket.create_server(("127.0.0.1" if one_node else "", 0), backlog=1024)
    addresses = ("127.0.0.1",) if one_node else _addresses()
    return sock, Rendezvous(addresses, sock.getsockname()[1], secrets.token_hex(16), rank)


def _addresses() -> tuple[str, ...]:
    """The addresses of this node, those first that other nodes are likely to reach."""
    named: list[str] = []
    with suppress(OSError):
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        named += [str(each[4][0]) for each in found]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):  # or the names above must do
        sock.connect(("192.0.2.1", 9))  # sends nothing: it asks which address leads out of this node
        named.append(sock.getsockname()[0])
    ordered = sorted(named, key=lambda address: address.startswith("127."))
    return tuple(dict.fromkeys([*ordered, "127.0.0.1"]))


def _make_room(rank: int | None, ranks: int) -> None:
    """Let this process open as many files as a coordinator of so many ranks needs. Raises LaunchError if it may not."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = (inf if limit == unlimited else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    each = 2 if rank is None else 1  # mpicoll run has a file for each rank's process, too
    needed = len(os.listdir("/dev/fd")) + each * ranks + _OTHER_FILES
    if needed <= soft:
        return
    if needed > hard:
        who = "mpicoll run" if rank is None else f"rank {rank}"
        told = f"{who} may open {hard} files, and needs {needed}: {each} for each of {ranks} ranks, and what it has"
        raise LaunchError(f"{told} open", f"Raise the limit (ulimit -Hn {needed}; in systemd, LimitNOFILE)")
    # This is not done without need: select.select knows no file beyond the first 1,024.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

"""How the processes of a job reach the coordinator, and how messages go between them: lines of JSON over TCP. This
needs nothing of MPI."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import resource
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mpicoll.errors import LaunchError
from mpicoll.supervise import ending
from mpicoll.supervise.messages import Accepted, Hello, Message, Nonce, Process, Welcome

LIMIT = 1 << 26
"""Bytes of the longest message."""
_SECONDS_TO_CONNECT = 5.0
"""How long an address may take until the next one is tried."""
_SECONDS_TO_BE_GREETED = 60.0
"""How long the coordinator may take to answer. It greets one process after another, perhaps thousands."""
_OTHER_FILES = 8
"""The files of the watcher's own, and those that are written when a job ends."""

Reader = Callable[[Any], Any]
"""Gives a value of JSON as one of a type, and raises ValueError if it is none."""


# -- where the processes meet ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rendezvous:
    """Where the coordinator of a job listens, the token by which it knows who may speak to it, and its rank in the
    world."""

    addresses: tuple[str, ...]
    port: int
    token: str
    rank: int = 0

    @property
    def on_one_node(self) -> bool:
        """Whether only the processes of one node can reach it."""
        return self.addresses == ("127.0.0.1",)


def listen(one_node: bool, rank: int = 0, ranks: int = 1) -> tuple[socket.socket, Rendezvous]:
    """A socket at which this ``rank`` of the world listens, and how others find it: within this node alone, or from
    other nodes. So many ``ranks`` connect: raises LaunchError if this process may not open so many files."""
    _make_room(rank, ranks)
    sock = socket.create_server(("127.0.0.1" if one_node else "", 0), backlog=1024)
    addresses = ("127.0.0.1",) if one_node else _addresses()
    return sock, Rendezvous(addresses, sock.getsockname()[1], secrets.token_hex(16), rank)


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


def _make_room(rank: int, ranks: int) -> None:
    """Let this process, which is ``rank`` of the job's world, open as many files as a coordinator of so many ``ranks``
    needs. Raises LaunchError if it may not."""
    soft, hard = (_counted(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    needed = _open(soft) + ranks + _OTHER_FILES
    if needed <= soft:
        return
    if needed > hard:
        told = f"rank {rank} may open {hard} files, and needs {needed}: one for each of {ranks} ranks, and what it has"
        raise LaunchError(f"{told} open", f"Raise the limit (ulimit -Hn {needed}; in systemd, LimitNOFILE)")
    # This is not done without need: select.select knows no file beyond the first 1,024.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def _counted(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def _open(limit: float) -> float:
    """How many files this process has open, of so many."""
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:  # there is none left with which to look
        return limit


# -- connections ------------------------------------------------------------------------------------------------------


async def connect(rendezvous: Rendezvous, rank: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Process]:
    """The connection of this process, which is ``rank`` of the job's world, to the coordinator, and the coordinator's
    process. Raises OSError if it answers at none of its addresses."""
    failures = []
    for address in rendezvous.addresses:
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                reader, writer = await asyncio.open_connection(address, rendezvous.port, limit=LIMIT)
            async with asyncio.timeout(_SECONDS_TO_BE_GREETED):
                coordinator = await _introduced(reader, writer, rendezvous.token, rank)
        except OSError as e:  # TimeoutError is one
            failures.append(f"{address}: {e or 'no answer'}")
        else:
            if coordinator is not None:
                return reader, writer, coordinator
            writer.close()
            failures.append(f"{address}: another program listens there")
    raise OSError("; ".join(failures))


async def _introduced(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, rank: int
) -> Process | None:
    """Show the coordinator that this process knows the token, after the coordinator has shown the same. Returns the
    coordinator's process. None if another program listens there: it learns nothing of the token."""
    nonce = secrets.token_hex(16)
    say(writer, Nonce(nonce))
    welcome = await heard(reader)
    if not isinstance(welcome, Welcome) or not _is(welcome.proof, token, "coordinator", nonce):
        return None
    say(writer, Hello(_proof(token, "agent", welcome.nonce), rank, ending.this_process()))
    here = await heard(reader)
    return here.coordinator if isinstance(here, Accepted) else None


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> Hello | None:
    """What a process says that knows the token. None if it does not. This is the other side of ``connect``."""
    asked = await heard(reader)
    if not isinstance(asked, Nonce):
        return None
    nonce = secrets.token_hex(16)
    say(writer, Welcome(_proof(token, "coordinator", asked.nonce), nonce))
    hello = await heard(reader)
    if not isinstance(hello, Hello) or not _is(hello.proof, token, "agent", nonce):
        return None
    say(writer, Accepted(ending.this_process()))
    return hello


def _proof(token: str, side: str, nonce: str) -> str:
    """What only somebody who knows the token can say of a nonce. Each ``side`` says something else."""
    return hmac.new(token.encode(), f"{side} {nonce}".encode(errors="replace"), "sha256").hexdigest()


def _is(given: str, token: str, side: str, nonce: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), _proof(token, side, nonce).encode())


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, but no longer than so many seconds. Returns whether it has happened."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def say(writer: asyncio.StreamWriter, message: object) -> None:
    """Send a message of the protocol. It goes its way while the thread does other things."""
    if not writer.is_closing():
        writer.write(line_of(message))


async def heard(reader: asyncio.StreamReader) -> object | None:
    """The next message. None if the other side has gone, or says what is no message."""
    try:
        return message_in(await reader.readline())
    except (OSError, ValueError, RecursionError):
        return None


# -- messages as lines: an object is the list of its class's name and its fields --------------------------------------


def line_of(message: object) -> bytes:
    """The message as a line."""
    return json.dumps(message, default=_plain).encode() + b"\n"


def message_in(line: bytes) -> object:
    """The message of a line. Raises ValueError if there is none."""
    value = json.loads(line) if line.endswith(b"\n") else None
    kind = Message.kinds.get(value[0]) if isinstance(value, list) and value and isinstance(value[0], str) else None
    if kind is None:
        raise ValueError("not a message")
    return read(value, kind)


def read(value: Any, kind: Any) -> Any:
    """A value of JSON as one of this type. Raises ValueError if it is none."""
    return _reader(kind)(value)


@cache  # the type is looked at once: a trace has a million values
def _reader(kind: Any) -> Reader:
    if kind is Any:
        return lambda value: value
    if isinstance(kind, type) and issubclass(kind, Message):
        return _of_class(kind)
    parts = [_reader(part) for part in get_args(kind)]
    origin = get_origin(kind)
    if origin is list:
        return lambda value: [*map(parts[0], _checked(value, list))]
    if origin is tuple:
        return lambda value: tuple(_each(parts, _checked(value, list)))
    if origin is dict:
        return lambda value: {key: parts[1](each) for key, each in _checked(value, dict).items()}
    if origin in (Union, UnionType):
        return lambda value: _first(parts, value)
    return lambda value: _checked(value, kind, int if kind is float else kind)


def _of_class(kind: type[Message]) -> Reader:
    hints = get_type_hints(kind)
    parts = [_reader(hints[name]) for name in kind.fields]

    def of(value: Any) -> Any:
        if _checked(value, list)[:1] != [kind.__name__]:
            raise ValueError(f"not a {kind.__name__}")
        return kind(*_each(parts, value[1:]))

    return of


def _checked(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"not a {kinds[0].__name__}")
    return value


def _each(parts: Sequence[Reader], values: Sequence[Any]) -> list[Any]:
    if len(parts) != len(values):
        raise ValueError(f"not {len(parts)} values")
    return [part(value) for part, value in zip(parts, values, strict=True)]


def _first(parts: Sequence[Reader], value: Any) -> Any:
    for part in parts:
        with suppress(ValueError):
            return part(value)
    raise ValueError("none of the types that are possible here")


def _plain(message: Message) -> list[Any]:
    return [type(message).__name__, *(getattr(message, name) for name in message.fields)]

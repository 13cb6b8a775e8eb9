"""Messages between the watchers of a job: one JSON object a line, over TCP. They need nothing of MPI."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from dataclasses import dataclass
from typing import Any

__all__ = ["LIMIT", "Meeting", "Message", "connect", "happens", "heard", "listen", "say"]

LIMIT = 1 << 26
"""Bytes of the longest message."""
_SECONDS_TO_CONNECT = 5.0

Message = dict[str, Any]


@dataclass(frozen=True)
class Meeting:
    """Where the judge of a job listens, the word by which it knows who may speak to it, and its rank in the world."""

    addresses: tuple[str, ...]
    port: int
    token: str
    rank: int = 0


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
    ordered = dict.fromkeys(sorted(named, key=lambda address: address.startswith("127.")))
    return (*ordered, "127.0.0.1") if "127.0.0.1" not in ordered else tuple(ordered)


async def connect(meeting: Meeting, hello: Message) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Message]:
    """A connection to the judge, and its answer to ``hello``. Raises OSError if it answers at none of its addresses."""
    failures = []
    for address in meeting.addresses:
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                reader, writer = await asyncio.open_connection(address, meeting.port, limit=LIMIT)
                say(writer, {"token": meeting.token, **hello})
                answer = await heard(reader)
        except OSError as e:  # TimeoutError is one
            failures.append(f"{address}: {e or 'no answer'}")
        else:
            if answer is not None and "judge" in answer:
                return reader, writer, answer
            writer.close()
            failures.append(f"{address}: another program listens there")
    raise OSError("; ".join(failures))


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, but no longer than so many seconds. Returns whether it has happened."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def say(writer: asyncio.StreamWriter, message: Message) -> None:
    """Send a message. It goes its way while the thread does other things."""
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


async def heard(reader: asyncio.StreamReader) -> Message | None:
    """The next message. None if the other side has gone, or says what is no message."""
    try:
        line = await reader.readline()
        message = json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None

"""Connections between the watchers of a job, over TCP. They need nothing of MPI."""

from __future__ import annotations

import asyncio
import hmac
import secrets

from mpicoll.guard.watch import codec, ending
from mpicoll.guard.watch.meeting import Meeting
from mpicoll.guard.watch.protocol import Hello, Here, Nonce, Process, Welcome

LIMIT = 1 << 26
"""Bytes of the longest message."""
_SECONDS_TO_CONNECT = 5.0
"""How long an address may take until the next one is tried."""
_SECONDS_TO_BE_GREETED = 60.0
"""How long the judge may take to answer. It greets one process after another, perhaps thousands."""


async def connect(meeting: Meeting, rank: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Process]:
    """The connection of this process, which is ``rank`` of the job's world, to the judge, and the judge's process.
    Raises OSError if it answers at none of its addresses."""
    failures = []
    for address in meeting.addresses:
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                reader, writer = await asyncio.open_connection(address, meeting.port, limit=LIMIT)
            async with asyncio.timeout(_SECONDS_TO_BE_GREETED):
                judge = await _introduced(reader, writer, meeting.token, rank)
        except OSError as e:  # TimeoutError is one
            failures.append(f"{address}: {e or 'no answer'}")
        else:
            if judge is not None:
                return reader, writer, judge
            writer.close()
            failures.append(f"{address}: another program listens there")
    raise OSError("; ".join(failures))


async def _introduced(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, rank: int
) -> Process | None:
    """Show the judge that this process knows the token, after the judge has shown the same. Returns the judge's
    process. None if another program listens there: it learns nothing of the token."""
    nonce = secrets.token_hex(16)
    say(writer, Nonce(nonce))
    welcome = await heard(reader)
    if not isinstance(welcome, Welcome) or not _is(welcome.proof, token, "judge", nonce):
        return None
    say(writer, Hello(_proof(token, "member", welcome.nonce), rank, ending.this_process()))
    here = await heard(reader)
    return here.judge if isinstance(here, Here) else None


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> Hello | None:
    """What a process says that knows the token. None if it does not. This is the other side of ``connect``."""
    asked = await heard(reader)
    if not isinstance(asked, Nonce):
        return None
    nonce = secrets.token_hex(16)
    say(writer, Welcome(_proof(token, "judge", asked.nonce), nonce))
    hello = await heard(reader)
    if not isinstance(hello, Hello) or not _is(hello.proof, token, "member", nonce):
        return None
    say(writer, Here(ending.this_process()))
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
        writer.write(codec.line_of(message))


async def heard(reader: asyncio.StreamReader) -> object | None:
    """The next message. None if the other side has gone, or says what is no message."""
    try:
        return codec.message_in(await reader.readline())
    except (OSError, ValueError, RecursionError):
        return None

"""Messages between the watchers of a job: one JSON object a line, over TCP. They need nothing of MPI."""

from __future__ import annotations

import asyncio
import json

from mpicoll.guard.watch.meeting import Meeting, Message

__all__ = ["LIMIT", "connect", "happens", "heard", "say"]

LIMIT = 1 << 26
"""Bytes of the longest message."""
_SECONDS_TO_CONNECT = 5.0


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

"""Messages between the watchers of a job: one JSON object a line, over TCP. They need nothing of MPI."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets

from mpicoll.guard.watch.meeting import Meeting, Message

__all__ = ["LIMIT", "connect", "greeted", "happens", "heard", "say"]

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
                known = await _introduced(reader, writer, meeting.token)
                if known is not None:
                    say(writer, {"proof": known, **hello})
                answer = None if known is None else await heard(reader)
        except OSError as e:  # TimeoutError is one
            failures.append(f"{address}: {e or 'no answer'}")
        else:
            if answer is not None and "judge" in answer:
                return reader, writer, answer
            writer.close()
            failures.append(f"{address}: another program listens there")
    raise OSError("; ".join(failures))


async def _introduced(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> str | None:
    """What shows the judge that this process knows the token, after the judge has shown the same. None if another
    program listens there: it learns nothing of the token."""
    nonce = secrets.token_hex(16)
    say(writer, {"nonce": nonce})
    answer = await heard(reader)
    if answer is None or not hmac.compare_digest(str(answer.get("proof")), _proof(token, "judge", nonce)):
        return None
    return _proof(token, "member", str(answer.get("nonce")))


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> Message | None:
    """What a process says that knows the token. None if it does not. This is the other side of ``connect``."""
    first = await heard(reader)
    if first is None:
        return None
    nonce = secrets.token_hex(16)
    say(writer, {"nonce": nonce, "proof": _proof(token, "judge", str(first.get("nonce")))})
    hello = await heard(reader)
    if hello is None or not hmac.compare_digest(str(hello.get("proof")), _proof(token, "member", nonce)):
        return None
    return hello


def _proof(token: str, side: str, nonce: str) -> str:
    """What only somebody who knows the token can say of a nonce. Each ``side`` says something else."""
    return hmac.new(token.encode(), f"{side} {nonce}".encode(), "sha256").hexdigest()


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

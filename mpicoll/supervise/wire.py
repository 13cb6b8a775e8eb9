"""How the processes of a job reach the coordinator, and talk to it: by lines of JSON over TCP, without MPI."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from mpicoll.supervise import ending
from mpicoll.supervise.messages import Answer, Ask, Hello, Message, Nonce, Process, Question, Welcome

LIMIT = 1 << 26  # bytes of the longest message
_SECONDS_TO_CONNECT = 5.0  # how long an address may take until the next one is tried
_SECONDS_TO_BE_GREETED = 60.0
"""How long the coordinator may take to answer. It greets one process after another, perhaps thousands."""


async def connect(
    addresses: Sequence[str], port: int, token: str, rank: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Process]:
    """The connection of this process, which is ``rank`` of the job's world, to the coordinator, and the coordinator's
    process. Both show that they know the token. Raises OSError if it answers at none of its addresses."""
    failures = []
    for address in addresses:
        nonce, writer = secrets.token_hex(16), None
        try:
            async with asyncio.timeout(_SECONDS_TO_CONNECT):
                reader, writer = await asyncio.open_connection(address, port, limit=LIMIT)
            say(writer, Nonce(nonce))
            async with asyncio.timeout(_SECONDS_TO_BE_GREETED):
                welcome = await heard(reader)
            if isinstance(welcome, Welcome) and _is(welcome.proof, token, "coordinator", nonce):
                say(writer, Hello(_proof(token, "agent", welcome.nonce), rank, ending.this_process()))
                return reader, writer, welcome.coordinator
            failures.append(f"{address}: another program listens there")  # it learns nothing of the token
        except OSError as e:  # TimeoutError is one
            failures.append(f"{address}: {str(e) or 'no answer'}")
        if writer is not None:
            writer.close()
    raise OSError("; ".join(failures))


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> Hello | None:
    """What a process says that knows the token. None if it does not. This is the other side of ``connect``."""
    asked = await heard(reader)
    if not isinstance(asked, Nonce):
        return None
    nonce = secrets.token_hex(16)
    say(writer, Welcome(_proof(token, "coordinator", asked.nonce), nonce, ending.this_process()))
    hello = await heard(reader)
    return hello if isinstance(hello, Hello) and _is(hello.proof, token, "agent", nonce) else None


def _proof(token: str, side: str, nonce: str) -> str:
    """What only somebody who knows the token can say of a nonce. Each ``side`` says something else."""
    return hmac.new(token.encode(), f"{side} {nonce}".encode(errors="replace"), "sha256").hexdigest()


def _is(given: object, token: str, side: str, nonce: str) -> bool:
    return hmac.compare_digest(str(given).encode(errors="replace"), _proof(token, side, nonce).encode())


class Questions:
    """What this process has asked others, by the numbers of the questions."""

    def __init__(self) -> None:
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    def put(self, writer: asyncio.StreamWriter, question: Question[Any]) -> asyncio.Future[Any]:
        """Ask this. Who does not wait for the answer any more cancels it."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._awaited[number] = answer
        answer.add_done_callback(lambda _: self._awaited.pop(number))
        say(writer, Ask(number, question))
        return answer

    def take(self, answer: Answer) -> None:
        """An answer has come, perhaps too late."""
        if (awaited := self._awaited.get(answer.number)) is not None and not awaited.done():
            awaited.set_result(answer.value)


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, but no longer than so many seconds. Returns whether it has happened."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


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


# -- messages as lines: an object with the name of the message's class, and the list of its values --------------------


def line_of(message: object) -> bytes:
    return json.dumps(message, default=lambda each: {type(each).__name__: [*vars(each).values()]}).encode() + b"\n"


def message_in(line: bytes) -> Message:
    """The message of a line. Raises ValueError if there is none.

    Only a process that knows the job's token sends more than a greeting. So the types of the values are not checked."""
    try:
        message = json.loads(line, object_hook=_revived) if line.endswith(b"\n") else None
    except TypeError:  # the number of the values is another one
        message = None
    if not isinstance(message, Message):
        raise ValueError("not a message")
    return message


def _revived(value: dict[str, Any]) -> Any:
    """The message of which ``line_of`` has made this. Any other object stays as it is."""
    for name, values in value.items():
        if name in Message.kinds and isinstance(values, list):
            return Message.kinds[name](*values)
    return value

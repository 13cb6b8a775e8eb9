"""One process of a job: it looks at its communicators, tells the judge what has changed, and answers its questions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from mpicoll.guard.elastic import failure
from mpicoll.guard.watch import ending
from mpicoll.guard.watch.channel import Meeting, Message, connect, happens, heard, say
from mpicoll.guard.watch.watched import LOOK, TIME_IS_UP, Watched
from mpicoll.launch.elastic import is_elastic

__all__ = ["Member"]

_CHANGES = 2.0
"""Seconds between two messages that say no more than that calls were made."""
_SECONDS_TO_HEAR = 10.0
"""How long the judge may be silent when a call's time is up, and how long a launcher may take to end the job after the
judge's process has ended."""


class Member:
    """This process, rank ``rank`` of the job's world. ``dump`` writes its calls to files and says where."""

    def __init__(self, rank: int, meeting: Meeting, dump: Callable[[str], str]) -> None:
        self.rank, self._meeting, self._dump = rank, meeting, dump
        self.watched: dict[str, Watched] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._judge: Message | None = None
        """The judge's process, after it has said which."""
        self._last_heard = self._last_told = 0.0
        self._leaving = False
        self._compared: dict[str, asyncio.Event] = {}
        self.may_leave = asyncio.Event()
        """Set when nobody needs this process any more."""

    async def serve(self) -> None:
        """Look at the communicators, and do what the judge asks, until it lets this process go."""
        looking = asyncio.create_task(self._look_on())
        try:
            reader, self._writer = await connect(self._meeting)
        except OSError as e:
            where = " or ".join(self._meeting.addresses)
            said = f"mpicoll: rank {self.rank} cannot reach the watcher of its job at {where} ({e})"
            os.write(2, f"{said}: its calls are not compared with those of other ranks\n".encode())
            self.may_leave.set()
        else:
            say(self._writer, {"token": self._meeting.token, "rank": self.rank, "process": ending.this_process()})
            while not self.may_leave.is_set() and (message := await heard(reader)) is not None:
                self._last_heard = _now()
                self._obey(message)
            self._writer = None
            if self._leaving:
                self.may_leave.set()  # there is nobody left to ask
            elif is_elastic() and not self.may_leave.is_set():
                self.lose([self._meeting.rank])
        await looking

    # -- looking and telling ------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while not await happens(self.may_leave, LOOK):
            for each in self._all():
                each.look()
            self._tell()
            self._check_judge()

    def _all(self) -> list[Watched]:
        return [*self.watched.values()]  # the program adds to it meanwhile

    def _tell(self) -> None:
        """Tell the judge what has changed: waits at once, all else now and then."""
        everything = self._leaving or _now() - self._last_told >= _CHANGES
        if everything:
            self._last_told = _now()
        states: list[list[Any]] = []
        for each in self._all():
            state, told = each.state(), each.told
            if state != told and (everything or told is None or state[2] != told[2]):
                first = told is None and each.ranks[0] == self.rank
                states.append([each.name, *state, *([each.ranks] if first else ())])
                each.told = state
        if self._writer is not None and (states or self._leaving):
            say(self._writer, {"states": states, "leaving": self._leaving})

    def _check_judge(self) -> None:
        """End the job if the judge should end it and does not: it is stopped, or has ended."""
        gone = self._judge is not None and self._writer is None and not is_elastic()
        for each in self._all():
            late = each.state()[2] == TIME_IS_UP and each.seconds >= each.timeout + _SECONDS_TO_HEAR
            if (late and _now() - self._last_heard >= _SECONDS_TO_HEAR) or (gone and each.seconds >= _SECONDS_TO_HEAR):
                account, why = each.account(None), "has ended" if gone else "does not answer"
                does = account["words"] if account["waits"] else account["message"]
                said = f"mpicoll: rank {self.rank} has waited for {each.seconds:g} s in {does}, at {account['where']}"
                os.write(2, f"{said}. The first rank, which compares ranks, {why}. The job ends\n".encode())
                ending.end([self._judge] if self._judge else [])

    # -- what the judge and the program ask ---------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        if "ask" in message:
            assert self._writer is not None
            say(self._writer, {"answer": message["ask"], "value": self._answer(message)})
        elif "judge" in message:
            self._judge = message["judge"]
        elif "compared" in message:
            if (waiting := self._compared.pop(message["compared"], None)) is not None:
                waiting.set()
        elif "forget" in message:
            self.watched.pop(message["forget"], None)
        elif "lost" in message:
            self.lose(message["lost"])
        elif "fail" in message:
            ending.kill(message["silent"])
            if (each := self.watched.pop(message["fail"], None)) is not None and each.cut is not None:
                each.cut.fail(failure(message))
        elif "end" in message:
            ending.prepare_to_end(message["end"])
        elif "leave" in message:
            self.may_leave.set()

    def _answer(self, question: Message) -> Any:
        if question["what"] == "dump":
            return self._dump(question["why"])
        each = self.watched.get(question["name"])
        if each is None:
            return None
        match question["what"]:
            case "calls":
                return each.state()[0]
            case "hash":
                return each.recorder.hash(question["calls"])
            case "digests":
                calls = each.recorder.calls(question["first"])
                return [calls[0].number if calls else question["first"], [c.record.digest.hex() for c in calls]]
            case _:
                return each.account(question["number"])

    def lose(self, ranks: Sequence[int], found_here: bool = False) -> None:
        """These ranks of the world are lost: cut the communicators that they are in. Tell the judge if it may not know,
        because this process has ``found`` it ``here``."""
        for each in self._all():
            lost = [rank for rank, in_world in enumerate(each.ranks) if in_world in ranks]
            if lost and each.cut is not None:
                self.watched.pop(each.name, None)
                each.cut.lose(lost)
        if found_here and self._writer is not None:
            say(self._writer, {"lost": [*ranks]})

    async def leave(self) -> None:
        """Tell the judge that this process makes no more calls, and wait until it may go."""
        self._leaving = True
        self._tell()
        await self.may_leave.wait()

    async def compare(self, watched: Watched) -> None:
        """Let the judge compare the calls of a communicator now. If they differ, it ends the job."""
        if self._writer is not None:
            self._tell()
            done = self._compared.setdefault(watched.name, asyncio.Event())
            say(self._writer, {"compare": watched.name})
            await done.wait()


def _now() -> float:
    return asyncio.get_running_loop().time()

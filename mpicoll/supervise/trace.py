"""The file of a trace or a recording: the calls of all ranks on one clock, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from mpicoll.machine.system import write_whole
from mpicoll.supervise.agent import Clock, RowsFrom
from mpicoll.supervise.messages import Rows

_LOOKS, _SECONDS_TO_TELL = 8, 60.0
"""How often a clock is asked, whose fastest answer counts; and what a rank has to tell its calls."""
Reading = tuple[float, float]  # a time by the clock of this process, and how much later it was then by a rank's clock

AskRanks = Callable[..., Awaitable[dict[int, Any]]]
"""Puts a question to ranks, and returns the answers of those that answer in time: ``Processes.ask``."""


class Trace:
    """Asks ranks for their calls, and writes them to ``file``: those of the ``whole`` job, or of a recorded part."""

    def __init__(self, file: str, ask: AskRanks, whole: bool = False) -> None:
        self._file, self._ask, self.whole = file, ask, whole
        self.writing = asyncio.Lock()
        self.told_by: set[int] = set()
        """The ranks whose calls are in it. Those of a part have come to its end: others may not answer for long."""
        self.begun = 0  # how often it has begun to write
        self.failure = ""  # why the file could not be written
        self._clocks: dict[int, list[Reading]] = {}
        self._written = 0, ""  # how many rows the file has, and what was said of it

    async def read_clock(self, rank: int) -> None:
        """Compare a rank's clock with that of this process."""
        readings = []
        for _ in range(_LOOKS):
            before = monotonic()
            if rank not in (answers := await self._ask([rank], Clock())):
                return
            readings.append((before, answers[rank], monotonic()))
        self._clocks.setdefault(rank, []).append(difference(readings))

    async def write(self, size: int, seconds: float = _SECONDS_TO_TELL) -> str:
        """Write what ranks of a job of this ``size`` tell. Returns a line that says where, or why not."""
        self.begun += 1
        ranks = [*self.told_by]
        await asyncio.gather(*map(self.read_clock, ranks))
        all_told = await asyncio.gather(*(self._told(rank, seconds) for rank in ranks))
        told = {rank: of for rank, of in zip(ranks, all_told, strict=True) if of is not None}
        rows = sum(len(of.rows) for of in told.values())
        if rows < self._written[0] and self.whole:  # at the end, ranks that were asked again have left
            return self._written[1]
        self.failure = written(Path(self._file), told, self._clocks, size)
        if self.failure:
            return f"mpicoll: the trace could not be written to {self._file}: {self.failure}"
        all_ranks = f"{size} ranks" if len(told) == size else f"{len(told)} of {size} ranks"
        self._written = rows, f"mpicoll: the trace of {all_ranks} is in {self._file}"
        return self._written[1]

    async def _told(self, rank: int, seconds: float) -> Rows | None:
        """What a rank tells, in one or more messages. None if it does not answer, or has not recorded."""
        told: Rows | None = (await self._ask([rank], RowsFrom(self._file, 0), seconds)).get(rank)
        while told is not None and told.rest is not None:
            more = (await self._ask([rank], RowsFrom(self._file, told.rest), seconds)).get(rank)
            told = more and more.changed(rows=told.rows + more.rows)
        return told


class Traces:
    """The traces of a job: those of all its calls, and recordings of a part of them, by their files."""

    def __init__(self, ask: AskRanks, tasks: asyncio.TaskGroup) -> None:
        self._ask, self._tasks = ask, tasks
        self._of: dict[str, Trace] = {}

    def add(self, rank: int, file: str) -> None:
        """The rank's calls are to be in this trace, and in no other one: it may have got to know rank 0 since then."""
        trace = self._of.setdefault(file, Trace(file, self._ask, True))
        if rank not in trace.told_by:
            for other in self._of.values():
                if other.whole:
                    other.told_by.discard(rank)
            trace.told_by.add(rank)
            self._tasks.create_task(trace.read_clock(rank))

    async def write(self, *seconds: float) -> list[str]:
        """Write the traces of all calls. Returns what is to be said of them."""
        return [await each.write(len(each.told_by), *seconds) for each in [*self._of.values()]
                if each.whole and each.told_by]  # fmt: skip

    async def write_recording(self, asking: int, file: str, size: int) -> str:
        """The file has what those have told that have asked by then, each at its end. Returns a failure."""
        recording = self._of.setdefault(file, Trace(file, self._ask))
        recording.told_by.add(asking)
        before = recording.begun
        async with recording.writing:
            if recording.begun == before:
                await recording.write(size)
        return recording.failure


def difference(readings: list[tuple[float, float, float]]) -> Reading:
    """How much later it is by another clock, from readings of it between two of this one. Where no difference at all
    explains the fastest reading, too, it is the same clock: that of one node."""
    before, other, after = min(readings, key=lambda reading: reading[2] - reading[0])
    middle = (before + after) / 2
    return middle, 0.0 if before <= other <= after else other - middle


def by_this_clock(time: float, readings: list[Reading]) -> float:
    """A time of another clock by this one. Clocks drift apart evenly between the first reading and the last. Beyond
    these, nobody knows: a little error of two readings that lie close together would become a large one."""
    if not readings:
        return time
    (first, ahead), (last, ahead_then) = readings[0], readings[-1]
    passed = (time - ahead - first) / (last - first) if last > first else 0.0
    return time - (ahead + (ahead_then - ahead) * min(max(passed, 0.0), 1.0))


def written(file: Path, told: dict[int, Rows], clocks: dict[int, list[Reading]], size: int) -> str:
    """Write what ranks tell of a job of so many ranks. Returns why that cannot be done, or an empty text."""
    try:
        write_whole(file, json.dumps(chrome(told, clocks, size)))
    except OSError as e:
        return str(e)
    return ""


def chrome(told: dict[int, Rows], clocks: dict[int, list[Reading]], size: int) -> dict[str, Any]:
    """The trace in Chrome's format: a process a rank, a row a thread, times in microseconds since the first began."""
    first = min([by_this_clock(of.begin, clocks.get(rank, [])) for rank, of in told.items()], default=0.0)

    def microseconds(readings: list[Reading], time: float) -> float:
        return round((by_this_clock(time, readings) - first) * 1e6, 3)

    rows: list[dict[str, Any]] = []
    communicators: dict[str, list[int]] = {}
    ranks: dict[int, dict[str, Any]] = {}
    for rank, of in sorted(told.items()):
        at = partial(microseconds, clocks.get(rank, []))
        for name, value in ("name", f"rank {rank} on {of.host}"), ("sort_index", rank):
            rows.append({"ph": "M", "name": f"process_{name}", "pid": rank, "args": {name: value}})
        rows += [_on_one_clock(row, at) | {"pid": rank} for row in of.rows]
        communicators |= dict(of.communicators)
        ranks[rank] = {"host": of.host, "begin": at(of.begin), "end": at(of.end)}
    about = {"size": size, "ranks": ranks, "communicators": communicators}
    return {"traceEvents": rows, "displayTimeUnit": "ms", "mpicoll": about}


def _on_one_clock(row: dict[str, Any], at: Callable[[float], float]) -> dict[str, Any]:
    """The row, with the times that ``at`` gives."""
    if "ts" not in row:
        return row
    start, end = at(row["ts"]), at(row["ts"] + row["dur"])
    row = {**row, "ts": start, "dur": end - start}
    if about := row.get("args"):
        waits = [(at(since), at(until)) for since, until in about["waits"]]
        row["args"] = {**about, "issued": at(about["issued"]), "complete": at(about["complete"]), "waits": waits}
    return row

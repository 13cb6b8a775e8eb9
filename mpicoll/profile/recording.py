"""The file that :func:`mpicoll.record` or MPICOLL_TRACE has written, read again."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.errors import ArgumentError
from mpicoll.supervise.record import UNDER_WAY
from mpicoll.supervise.tape import WAIT

Span = tuple[float, float]  # from when to when, in microseconds


class Communicator(NamedTuple):
    """Its name, and its ranks as ranks of the job's world, in order."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A collective or a message of one rank. Times are in microseconds since the first rank began to record."""

    rank: int
    thread: str
    communicator: Communicator
    number: int | None  # which of the communicator's collectives it is. None for a message.
    operation: str
    description: str
    nbytes: int
    elements: int
    dtype: str
    root: int | None  # the root's rank in the communicator
    sources: tuple[int, ...]  # the ranks of the communicator from which a message may come
    source_tag: int | None
    targets: tuple[int, ...]
    target_tag: int | None
    site: str
    is_over: bool
    issued: float
    method: Span
    """The method that has made or begun it. Of an asynchronous call of torch's, what a thread of mpicoll's did."""
    waits: tuple[Span, ...]  # when threads have waited for it besides
    complete: float  # when it was complete, or the rank knew that it was
    backward: int | None
    """If the reducer of DistributedDataParallel has issued it, the number of the rank's backward pass."""

    @property
    def collective(self) -> str:
        """The collective that it is, by the name that the table of collectives has, if it has one."""
        return self.operation.removeprefix("i").removesuffix("_object")

    @property
    def in_method(self) -> list[Span]:
        """When the program was in the method."""
        return [] if self.thread == ASYNCHRONOUS else [self.method]

    @property
    def under_way(self) -> Span:
        """From its issue until it was complete."""
        return self.issued, self.complete

    @cached_property
    def exposed(self) -> list[Span]:
        """When a thread of the program was in it, and did nothing else."""
        return union([*self.in_method, *self.waits])

    @property
    def kind(self) -> str:
        """What calls have in common that a line of a program makes: of a message, not which ranks are at its ends."""
        if self.number is not None:
            return self.description
        of = f"{self.elements} {self.dtype}" if self.elements else f"{self.nbytes} bytes"
        return f"{self.operation} of {of}"


ASYNCHRONOUS = "asynchronous calls"  # the row of the thread that carries out asynchronous calls


@dataclass(frozen=True)
class Recording:
    """All calls of a file, in the order of their issue. ``spans`` says from when to when each rank has recorded, and
    ``size`` how many ranks the job had."""

    calls: list[Call]
    spans: dict[int, Span]
    hosts: dict[int, str]
    size: int

    @cached_property
    def by_rank(self) -> dict[int, list[Call]]:
        found: dict[int, list[Call]] = {rank: [] for rank in self.spans}
        for call in self.calls:
            found[call.rank].append(call)
        return found


def load(file: Path) -> Recording:
    """Read a recording. Raises ArgumentError if it is none."""
    try:
        content = json.loads(file.read_text())
        return _of(content["traceEvents"], content["mpicoll"])
    except OSError as e:
        raise ArgumentError("report", "FILE", "a file that can be read", f"{str(file)!r} ({e.strerror})") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        expected = "a file that mpicoll.record or MPICOLL_TRACE has written"
        raise ArgumentError("report", "FILE", expected, repr(str(file))) from None


_AS_IN_FILE = (
    "number", "elements", "dtype", "root", "source_tag", "target_tag", "issued", "complete", "backward"
)  # fmt: skip
"""What a call of the file calls by the same names."""


def _of(rows: list[dict[str, Any]], about: dict[str, Any]) -> Recording:
    communicators = {name: Communicator(name, tuple(ranks)) for name, ranks in about["communicators"].items()}
    threads = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    calls = []
    for row in rows:
        if row["ph"] != "X" or row["cat"] == WAIT:
            continue
        args, begin = row["args"], row["ts"]
        call = Call(
            rank=row["pid"],
            thread=threads[row["pid"], row["tid"]],
            communicator=communicators[args["communicator"]],
            operation=row["cat"],
            description=row["name"],
            nbytes=args["bytes"],
            site=args["called at"],
            is_over=args["state"] != UNDER_WAY,
            method=(begin, begin + row["dur"]),
            sources=tuple(args["sources"]),
            targets=tuple(args["targets"]),
            waits=tuple((since, until) for since, until in args["waits"]),
            **{name: args[name] for name in _AS_IN_FILE},
        )
        calls.append(call)
    spans = {int(rank): (of["begin"], of["end"]) for rank, of in about["ranks"].items()}
    hosts = {int(rank): of["host"] for rank, of in about["ranks"].items()}
    calls.sort(key=lambda call: call.issued)
    return Recording(_with_waits_of_reducers(calls), spans, hosts, about["size"])


def _with_waits_of_reducers(calls: list[Call]) -> list[Call]:
    """DistributedDataParallel's reducer waits in C++, where nobody sees it: when it has issued the last all-reduce of a
    backward pass, it waits for all of them. The program's next call comes later."""
    passes: defaultdict[tuple[int, int], list[Call]] = defaultdict(list)
    issued: defaultdict[int, list[float]] = defaultdict(list)
    for call in calls:
        issued[call.rank].append(call.issued)
        if call.backward is not None and not call.waits:
            passes[call.rank, call.backward].append(call)
    waits: dict[Call, Call] = {}
    for (rank, _), each in passes.items():
        last = each[-1].issued
        later = issued[rank][bisect_right(issued[rank], last) :][:1]
        for call in each:
            if last < (until := min([call.complete, *later])):
                waits[call] = replace(call, waits=((last, until),), complete=until)
    return [waits.get(call, call) for call in calls]


def union(spans: Iterable[Span]) -> list[Span]:
    """The same times, without overlaps, in order."""
    found: list[Span] = []
    for since, until in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((since, until))
    return found


def total(spans: Iterable[Span]) -> float:
    """How long they are together."""
    return sum(until - since for since, until in spans)


def within(spans: Iterable[Span], window: Span) -> list[Span]:
    """What of them lies within another one."""
    cut = [(max(since, window[0]), min(until, window[1])) for since, until in spans]
    return [(since, until) for since, until in cut if since < until]

"""The calls of a recorded program: what a trace of MPICOLL_TRACE says is worth measuring."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.algorithms.collectives import UNEVEN, canonical, even_and_uneven
from mpicoll.arrays.dtypes import DTYPES, OPS, reduction
from mpicoll.bench.tune.cells import CASES, OURS, SHORTEST, Cell
from mpicoll.bench.tune.cells import sizes as sizes_from
from mpicoll.bench.tune.tuner import Group
from mpicoll.errors import ArgumentError, DtypeError

__all__ = ["groups_of"]

_EXCHANGES = ("all_to_all", "all_to_all_single")
"""torch's functions that are an alltoallv in any case."""
LOW = 16 << 10
"""Shorter vectors travel as MPI's own messages, which no schedule makes faster."""


class Call(NamedTuple):
    """A call of a trace that a table can serve."""

    case: str
    ranks: int
    nbytes: int
    seconds: float


def groups_of(
    file: Path, names: Collection[str], ranks: Container[int] | None, low: int | None, high: int | None
) -> Sequence[Group]:
    """What the trace's program calls, those calls first that took most of its time. Each size is a power of two that is
    no longer than the calls'. ``names``, ``ranks``, ``low`` and ``high`` leave calls out, unless they are empty."""
    spent: dict[tuple[str, int], float] = defaultdict(float)
    sizes: dict[tuple[str, int], set[int]] = defaultdict(set)
    for call in _calls(_events(file)):
        size = 1 << (call.nbytes.bit_length() - 1)
        if size < (low or LOW) or (high is not None and size > high) or (ranks is not None and call.ranks not in ranks):
            continue
        if names and call.case.partition(":")[0] not in names:
            continue
        key = call.case, call.ranks
        spent[key] += call.seconds
        sizes[key].add(size)
    if not spent:
        raise ArgumentError(
            "tune", "--for", f"a trace with collectives of at least {low or LOW} bytes", repr(str(file))
        )
    return [Group(*key, _measured(key[0], sizes[key])) for key in sorted(spent, key=lambda key: -spent[key])]


def _measured(case: str, called: Collection[int]) -> tuple[int, ...]:
    """The sizes to measure for calls of these sizes."""
    if Cell(case, 0).extent_is_common:
        return tuple(sorted(called))
    return tuple(sizes_from(case, SHORTEST, max(called)))


def _events(file: Path) -> list[Any]:
    expected = "a trace that MPICOLL_TRACE has written"
    try:
        events = json.loads(file.read_text())["traceEvents"]
    except (OSError, ValueError) as e:
        raise ArgumentError("tune", "--for", expected, f"{str(file)!r} ({e})") from None
    except (TypeError, KeyError):
        raise ArgumentError("tune", "--for", expected, f"{str(file)!r}, which has no 'traceEvents'") from None
    return [each for each in events if each.get("ph") == "X"]


def _calls(events: Sequence[Any]) -> Iterator[Call]:
    ranks: dict[str, set[int]] = defaultdict(set)
    for each in events:
        ranks[each["args"]["communicator"]].add(each["pid"])
    for each in events:
        among = len(ranks[each["args"]["communicator"]])
        case = _case(each["name"])
        if case and among > 1 and each["args"]["bytes"]:
            yield Call(case, among, each["args"]["bytes"], each["dur"] / 1e6)


def _case(description: str) -> str:
    """The case of a call that is described so: ``all_reduce sum of 8 float32``. Empty where no table can serve it."""
    found = re.match(r"i?(\w+?)( \w+)? of (?:\d+ )?(\w+)", description)
    name = None if found is None else _method(found[1])
    if found is None or name not in CASES or "algorithm" in description:
        return ""
    if not even_and_uneven(name)[0].reduces:
        return name
    op, dtype = (found[2] or "").strip(), DTYPES.get(found[3])
    if op not in OPS or dtype is None:
        return ""
    try:
        by_mpi = bool(reduction(op, dtype, name).mpi)
    except DtypeError:
        return ""
    return name if by_mpi else f"{name}:{OURS}"


def _method(name: str) -> str | None:
    """The Communicator's method that a call of this name is carried out by; None if there is none."""
    if name in _EXCHANGES:
        return "alltoallv"
    return name if name in UNEVEN else canonical(name)

"""A schedule as GOAL text, which LogGOPSim and the simulators after it read.

GOAL (Hoefler, Siebert and Lumsdaine, Group Operation Assembly Language, ICPP 2009) names each rank's operations and
which of them require which. Sizes are in bytes. ``calc`` is work in nanoseconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from typing import TextIO

from mpicoll.algorithms.steps import Copy, RecvReduce, Schedule, Send
from mpicoll.analysis.cost.machines import Machine


def write(file: TextIO, schedule_of: Callable[[int], Schedule], size: int, nbytes: int, machine: Machine) -> None:
    """Write the schedules of all ranks for a vector of ``nbytes``, with the machine's reductions and copies."""
    rates = [machine.rate(rate, nbytes) for rate in (machine.reduction, machine.copy)]
    file.write(f"num_ranks {size}\n")
    for rank in range(size):
        lines = _lines(schedule_of(rank), nbytes, *rates)
        file.writelines(f"{line}\n" for line in (f"\nrank {rank} {{", *lines, "}"))


def _lines(schedule: Schedule, nbytes: int, reduction: float, copy: float) -> Iterator[str]:
    """The lines of one rank. The tag of a message is its number between its two ranks, which both ends count alike."""
    tags: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(count)
    labels = map("l{}".format, count(1))

    def size(blocks: int) -> int:
        """In bytes. LogGOPSim subtracts 1 from the size of a message, which is unsigned."""
        return max(1, round(nbytes * blocks / max(1, schedule.blocks)))

    before: list[str] = []
    for step in schedule.steps:
        if len(before) > 1:  # so that n operations that require n others are 2n lines, not n squared
            join = next(labels)
            yield f"{join}: calc 0"
            yield from (f"{join} requires {each}" for each in before)
            before = [join]
        ends: list[str] = []
        for action in step:
            if isinstance(action, Copy):
                continue
            label, n = next(labels), size(sum(map(len, action.blocks)))
            verb, end = ("send", "to") if isinstance(action, Send) else ("recv", "from")
            yield f"{label}: {verb} {n}b {end} {action.peer} tag {next(tags[verb, action.peer])}"
            yield from (f"{label} requires {each}" for each in before)
            if isinstance(action, RecvReduce):
                received, label = label, next(labels)
                yield f"{label}: calc {round(n * reduction * 1e9)}"
                yield f"{label} requires {received}"
            ends.append(label)
        before = ends or before
        copied = sum(len(r) for action in step if isinstance(action, Copy) for r in action.blocks)
        if copied:  # after the messages
            label = next(labels)
            yield f"{label}: calc {round(size(copied) * copy * 1e9)}"
            yield from (f"{label} requires {each}" for each in before)
            before = [label]

"""A schedule as GOAL text, which LogGOPSim and the simulators after it read.

GOAL (Hoefler, Siebert and Lumsdaine, Group Operation Assembly Language, ICPP 2009) names each rank's operations and
which of them require which. Sizes are in bytes. ``calc`` is work in nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from typing import TextIO

from mpicoll.algorithms.steps import Copy, RecvReduce, Schedule, Send, Step
from mpicoll.analysis.cost.machines import Machine


def write(file: TextIO, schedule_of: Callable[[int], Schedule], size: int, nbytes: int, machine: Machine) -> None:
    """Write the schedules of all ranks for a vector of ``nbytes``, with the machine's reductions and copies."""
    rates = [machine.rate(rate, nbytes) for rate in (machine.reduction, machine.copy)]
    file.write(f"num_ranks {size}\n")
    for rank in range(size):
        lines = _Rank(schedule_of(rank), nbytes, *rates).lines()
        file.writelines(f"{line}\n" for line in (f"\nrank {rank} {{", *lines, "}"))


class _Rank:
    """The lines of one rank. The tag of a message is its number between its two ranks, which both ends count alike."""

    def __init__(self, schedule: Schedule, nbytes: int, reduction: float, copy: float) -> None:
        self.schedule, self.nbytes, self.reduction, self.copy = schedule, nbytes, reduction, copy
        self.tags: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(count)
        self.labels = count(1)

    def lines(self) -> Iterator[str]:
        before: list[str] = []
        for step in self.schedule.steps:
            if len(before) > 1:  # so that n operations that require n others are 2n lines, not n squared
                join = self._label()
                yield f"{join}: calc 0"
                yield from (f"{join} requires {each}" for each in before)
                before = [join]
            ends: list[str] = []
            yield from self._step(step, before, ends)
            before = ends or before

    def _step(self, step: Step, before: list[str], ends: list[str]) -> Iterator[str]:
        """The lines of the step. Its copies follow its messages. ``ends`` gets what the next step requires."""
        messages = [a for a in step if not isinstance(a, Copy)]
        for action in messages:
            label = self._label()
            n = self._bytes(sum(map(len, action.blocks)))
            verb, end = ("send", "to") if isinstance(action, Send) else ("recv", "from")
            yield f"{label}: {verb} {n}b {end} {action.peer} tag {next(self.tags[verb, action.peer])}"
            yield from (f"{label} requires {each}" for each in before)
            if isinstance(action, RecvReduce):
                combined = self._label()
                yield f"{combined}: calc {round(n * self.reduction * 1e9)}"
                yield f"{combined} requires {label}"
                label = combined
            ends.append(label)
        copied = sum(len(r) for a in step if isinstance(a, Copy) for r in a.blocks)
        if copied:
            label = self._label()
            yield f"{label}: calc {round(self._bytes(copied) * self.copy * 1e9)}"
            yield from (f"{label} requires {each}" for each in ends or before)
            ends[:] = [label]

    def _bytes(self, blocks: int) -> int:
        """The size of so many blocks. LogGOPSim subtracts 1 from the size of a message, which is unsigned."""
        return max(1, round(self.nbytes * blocks / max(1, self.schedule.blocks)))

    def _label(self) -> str:
        return f"l{next(self.labels)}"

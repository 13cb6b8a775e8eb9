"""What an algorithm is: a pure function from a rank's place to its steps, and facts about it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from traceback import extract_tb

from mpicoll.algorithms.collectives import COLLECTIVES, canonical
from mpicoll.algorithms.steps import INPUT, OUTPUT, Copy, Cut, Nodes, Place, Schedule, Steps, run, whole
from mpicoll.errors import PACKAGE, ArgumentError, MpicollError, ScheduleError
from mpicoll.units import line_named

MOST = 1000  # the most steps of a rank, for each rank and each segment that there are


@dataclass(frozen=True)
class Algorithm:
    """One algorithm for one collective: a pure function from a rank's place to its steps, and facts about it.

    ``collective`` has MPI's name or torch's: ``all_reduce`` becomes ``allreduce``.

    The docstring of the function begins with a summary. Its last lines are ``Cost:``, in the terms of
    docs/reference/algorithms.md, and ``Source:``. ``declines(size, root)`` returns the reason why the algorithm cannot
    serve these, or None if it can. ``uneven`` says that it also serves blocks of different sizes (the v-variant). Then
    every message must carry the same blocks at both ends. ``segment`` is the bytes of a segment, if the algorithm is
    pipelined. ``by_node`` says that it depends on node placement."""

    collective: str
    name: str
    steps: Callable[[Place], Steps]
    cut: Cut = whole
    declines: Callable[[int, int], str | None] = lambda size, root: None
    uneven: bool = False
    segment: int | None = None
    by_node: bool = False

    def __post_init__(self) -> None:
        name = canonical(self.collective) if isinstance(self.collective, str) else None
        if name is None:
            raise ArgumentError("Algorithm", "collective", "one of " + ", ".join(COLLECTIVES), repr(self.collective))
        object.__setattr__(self, "collective", name)
        functions = {"steps": "a Place to its steps", "cut": "a Place to blocks", "declines": "size and root"}
        for argument, what in functions.items():
            if not callable(given := getattr(self, argument)):
                raise ArgumentError("Algorithm", argument, f"a function from {what}", repr(given))
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ArgumentError("Algorithm", "name", "a name of letters, digits and _", repr(self.name))
        if self.segment is not None and (type(self.segment) is not int or self.segment < 1):
            raise ArgumentError("Algorithm", "segment", "bytes, at least 1", repr(self.segment))

    @property
    def pipelined(self) -> bool:
        """Whether a longer vector is cut into more blocks."""
        return self.segment is not None

    def blocks(self, at: Place) -> int:
        table = COLLECTIVES[self.collective]
        if not table.moves:
            return 0
        return at.size if table.by_rank else self.cut(at)

    def schedule(self, rank: int, size: int, root: int = 0, segments: int = 1, nodes: Nodes | None = None) -> Schedule:
        """The schedule of this rank. ``nodes`` says where the ranks are, None that one node has them all.

        Raises ArgumentError, with the reason, if the algorithm declines."""
        if reason := self.declines(size, root):
            served = f"{size} ranks" + f" and root {root}" * COLLECTIVES[self.collective].rooted
            expected = f"one that serves {served} ({self.name} does not: {reason})"
            raise ArgumentError(self.collective, "algorithm", expected, repr(self.name))
        at = Place(rank, size, root, segments, nodes if self.by_node else None)
        what, most = f"{self.collective} {self.name} of {size} ranks", MOST * size * segments
        try:
            blocks = self.blocks(at)
            if size > 1:
                steps = self.steps(at)
            else:  # its input is its result
                table = COLLECTIVES[self.collective]
                copies = table.wants(0, 1, 0, blocks) and not table.in_x
                steps = [(Copy(run(0, blocks), INPUT, OUTPUT),)] if copies else []
            kept = tuple(islice(steps, most + 1))
        except (MpicollError, MemoryError):
            raise
        except Exception as e:  # a function of the program's may raise anything, or return what cannot be iterated over
            own = [each for each in extract_tb(e.__traceback__) if not each.filename.startswith(PACKAGE)][-1:]
            where = tuple(f"at {line_named(each.filename, each.lineno or 0)}: {each.line}" for each in own)
            cause = e.with_traceback(e.__traceback__ and e.__traceback__.tb_next)
            raise ScheduleError(what, rank, None, None, f"raises {type(e).__name__}: {e}", where) from cause
        if len(kept) > most:
            problem = f"yields more than {most:,} steps: does its function never end?"
            raise ScheduleError(what, rank, None, None, problem)
        return Schedule(self.collective, self.name, blocks, kept)

    @property
    def serves(self) -> str:
        """Every number of ranks, or why it declines some of 1 to 64 ranks with the first or the last rank as root."""
        reasons = dict.fromkeys(self.declines(size, root) for size in range(1, 65) for root in (0, size - 1))
        return "; ".join(f"not: {reason}" for reason in reasons if reason) or "every number of ranks"

    @property
    def summary(self) -> str:
        """What it does: the first paragraph of its docstring."""
        return inspect.cleandoc(self.steps.__doc__ or "").partition("\n\n")[0].replace("\n", " ")

    @property
    def cost(self) -> str:
        return self._stated("Cost")

    @property
    def paper(self) -> str:
        return self._stated("Source")

    def _stated(self, what: str) -> str:
        """What the end of its docstring says."""
        found = re.search(rf"^{what}:(.*(?:\n  .*)*)", inspect.cleandoc(self.steps.__doc__ or ""), re.MULTILINE)
        return " ".join(found[1].split()) if found else ""

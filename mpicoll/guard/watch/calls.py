"""A communicator, as the judge knows it: what each of its ranks has told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from mpicoll.guard.watch.watched import LATE, SHORT

_LOOKS_IN_A_PATIENCE = 6
"""How often ranks are asked while a message may be on its way. To ask all of a job costs something."""


@dataclass(eq=False)
class Calls:
    """A communicator: what each of its ranks has told, by their ranks in the world."""

    name: str
    ranks: list[int] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    compared: int = 0
    """How many first calls are known to be the same on all ranks."""
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    warned: bool = False
    waited: float = 0.0
    """Seconds for which some rank has waited, by the judge's looks."""
    next_look: float = 0.0
    """After how many of them it is asked whether the waits can end; 0 if that is not known yet."""

    def time_passes(self, seconds: float) -> None:
        """Some rank has waited for so many more seconds, if one waits."""
        if self.longest() != SHORT:
            self.waited += seconds

    def is_late(self, patience: float) -> bool:
        """Whether some rank has waited for so long that it should be asked whether the waits can end: first after this
        ``patience``, and then again and again, because another rank may have begun to wait later."""
        self.next_look = self.next_look or patience
        if self.waited < self.next_look:
            return False
        self.next_look = self.waited + max(LATE, patience / _LOOKS_IN_A_PATIENCE)
        return True

    def least(self) -> int:
        """How many calls all ranks have told of."""
        return min(self.calls.get(rank, 0) for rank in self.ranks)

    def most(self) -> int:
        return max(self.calls.values(), default=0)

    def are(self, *states: str) -> bool:
        """Whether some rank is in one of these states."""
        return any(state in states for state in self.states.values())

    def longest(self) -> int:
        """How long a rank waits."""
        return max(self.waits.values(), default=SHORT)

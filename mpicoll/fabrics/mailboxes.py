"""What the ranks of one communicator share when they are threads: messages that were sent, and receives that wait."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import Any

from mpicoll.transports.threads import Posted

__all__ = ["Awaited", "Group", "Message"]


@dataclass(eq=False)
class Message:
    """One that was sent."""

    source: int
    tag: int
    content: Any


@dataclass(eq=False)
class Awaited:
    """A receive that was started, from any rank if ``source`` is None; ``message`` is what came for it."""

    source: int | None
    tag: int
    message: Message | None = None

    def takes(self, message: Message) -> bool:
        return message.tag == self.tag and self.source in (None, message.source)


class Group:
    """What the ranks of one communicator share."""

    def __init__(self) -> None:
        self.mailboxes: defaultdict[int, list[Message]] = defaultdict(list)
        self.awaited: defaultdict[int, list[Awaited]] = defaultdict(list)
        self.posted: defaultdict[tuple[int, int], deque[Posted]] = defaultdict(deque)
        self.meetings: defaultdict[int, dict[int, tuple[str, Any]]] = defaultdict(dict)
        self.met: Counter[int] = Counter()
        self.subsets: dict[tuple[tuple[int, ...], int], Group] = {}
        self.made: Counter[tuple[tuple[int, ...], int]] = Counter()

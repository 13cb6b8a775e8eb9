"""What the ranks of one communicator share where they are threads: messages that nobody has received yet, and receives
whose message has not come yet."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from mpicoll.fabrics.transports.threads import Posted


@dataclass(eq=False)
class Message:
    """A message that was sent."""

    source: int
    tag: int
    content: Any


@dataclass(eq=False)
class Awaited:
    """A receive that was started, from any rank if ``source`` is None, and with any tag if that is None. ``message`` is
    None until it has come."""

    source: int | None
    tag: int | None
    message: Message | None = None

    def takes(self, message: Message) -> bool:
        """Whether this receive can take the message."""
        return self.tag in (None, message.tag) and self.source in (None, message.source)


class Group:
    """What the ranks of one communicator share."""

    def __init__(self) -> None:
        self.mailboxes: defaultdict[int, list[Message]] = defaultdict(list)
        """By destination, the messages that no receive has taken yet."""
        self.awaited: defaultdict[int, list[Awaited]] = defaultdict(list)
        """By destination, the receives that wait for their message."""
        self.posted: defaultdict[tuple[int, int], deque[Posted]] = defaultdict(deque)
        """By source and destination, the memory that a collective lets the destination read."""
        self.meetings: defaultdict[int, dict[int, tuple[str, Any]]] = defaultdict(dict)
        """By turn, what each rank that has come brings to the meeting: its operation, and its value."""
        self.met: Counter[int] = Counter()
        """By rank, the number of meetings to which it has come."""
        self.subsets: defaultdict[frozenset[int], list[Subset]] = defaultdict(list)
        """By its ranks, the subsets that some of them have made, and others have not yet."""


@dataclass(eq=False)
class Subset:
    """What the ranks of a subset share, and their order."""

    group: Group
    members: tuple[int, ...]
    made: set[int] = field(default_factory=set)
    """The ranks that have made it."""

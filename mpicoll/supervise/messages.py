"""What the messages of a job's processes and its coordinator are made of. The messages themselves are in ``agent``."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import get_annotations
from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

A = TypeVar("A", covariant=True)


@dataclass_transform(frozen_default=True)
class Message:
    """A message or a part of one. Its class has annotated fields. Dataclasses would add 20 ms to each rank's start."""

    kinds: ClassVar[dict[str, type[Message]]] = {}  # all such classes, by their names
    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kinds[cls.__name__] = cls
        cls.fields = cls.__match_args__ = tuple(get_annotations(cls))  # type: ignore[attr-defined, misc]  # it makes them

    def __init__(self, *values: Any, **named: Any) -> None:
        fields, given = self.fields, dict(zip(self.fields, values, strict=False), **named)
        defaults = {name: getattr(type(self), name) for name in fields if hasattr(type(self), name)}
        if len(values) > len(fields) or (known := defaults | given).keys() != {*fields}:
            raise TypeError(f"{type(self).__name__} has the fields {fields}; given {values}, {named}")
        vars(self).update((name, known[name]) for name in fields)

    def changed(self, **named: Any) -> Self:
        """The same with other values of these fields."""
        return type(self)(**(vars(self) | named))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Process(Message):
    """How processes of the same node find this one: its number, and in which node's and container's count it is so."""

    pid: int
    host: str
    space: int


# -- how a connection begins ------------------------------------------------------------------------------------------


class Nonce(Message):
    """A process asks the coordinator to show that it knows the job's token."""

    nonce: str


class Welcome(Message):
    """The coordinator shows it, asks the same, and says which process it is."""

    proof: str
    nonce: str
    coordinator: Process


class Hello(Message):
    """The process shows it, and says who it is."""

    proof: str
    rank: int
    process: Process


# -- what both sides say of a job --------------------------------------------------------------------------------------


class State(Message):
    """The state of a communicator: how many calls can be compared, whether more can come, how long the oldest wait
    lasts, and how many seconds a call may take. Its first rank also says which ranks it has."""

    name: str
    calls: int
    state: str
    wait: int
    timeout: float
    ranks: list[int] | None


class Question(Message, Generic[A]):
    """A question whose answer is an ``A``."""


class Ask(Message):
    """The question of this number."""

    number: int
    question: Question[Any]


class Answer(Message):
    """To the question of this number."""

    number: int
    value: Any


class Lock(Message):
    """A lock of the memory of a window's ``rank``, None for all of its ranks."""

    window: str
    rank: int | None
    exclusive: bool

    def keeps(self, other: Lock) -> bool:
        """Whether nobody gets the other lock while this one is held."""
        if self.window != other.window or not (self.exclusive or other.exclusive):
            return False
        return self.rank is None or other.rank is None or self.rank == other.rank


class Ends(Message):
    """Which ranks may be at the other end of a message, and of both messages of a sendrecv; or else a lock."""

    sources: Sequence[int] = ()  # the ranks from which a message may come
    source_tag: int | None = None  # its tag, None for any
    targets: Sequence[int] = ()  # the ranks that may take a message
    target_tag: int | None = None  # its tag, None if there is none
    lock: Lock | None = None  # the lock of a window that must be given up


class RankStatus(Message):
    """What a rank says of one call of a communicator, and what it does now."""

    begun: int  # how many calls it has begun
    state: str
    number: int  # that of the call that this status is about
    operation: str  # empty if the rank does not know the call
    description: str | None  # what was called, None if the rank does not know the call
    site: str | None
    root: int | None  # by its rank in the world; None if the call has none
    ahead: int  # how many calls ahead of another rank nobody can be in this call; 0 if that is not known
    ago: float  # seconds since this call had begun, as far as looks can tell
    waits: bool  # whether the rank is in this call now
    message: str | None  # the one that it waits for
    unreceived: list[tuple[int, int, int]]  # the first messages that no receive has asked for: source, tag and bytes
    ends: Ends  # what may end that wait, with the ranks of the world
    locks: list[Lock]  # those that it holds
    alone: bool  # whether the program has only the thread that waits, and no function that a signal calls
    under_way: bool  # whether other messages may be under way, if the wait is a late one
    seconds: float  # how long its oldest wait has lasted
    stuck: float  # the same, if the wait does not end by itself
    where: str
    handles: str  # the exception that the program handles meanwhile; empty if there is none
    failed: str  # the last test that has failed; empty if there is none
    leaving: bool

    @property
    def tells(self) -> tuple[bool, bool, float]:
        """How much this says of what the rank does now: in one of its communicators it waits, or was last."""
        return self.waits or self.message is not None, self.description is not None, -self.ago


class Files(Message):
    """The folder in which a process has written its files, or why it could not."""

    folder: str
    failure: str


class Rows(Message):
    """The calls of a process as rows of a trace, between ``begin`` and ``end``, in seconds of ``time.monotonic``. Of
    the ``communicators``, names and ranks. ``rest`` is the number of the first row that is still to be told."""

    host: str
    communicators: list[tuple[str, list[int]]]
    begin: float
    end: float
    rows: list[dict[str, Any]]
    rest: int | None

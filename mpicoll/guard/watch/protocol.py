"""What the processes of a job and its judge say to each other: one class for each kind of message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

__all__ = [
    "MESSAGES",
    "Account",
    "AccountOf",
    "Answer",
    "Ask",
    "Beat",
    "CallsOf",
    "Clock",
    "Compare",
    "Dump",
    "End",
    "Event",
    "EventList",
    "EventsFrom",
    "Fail",
    "Failed",
    "Files",
    "Forget",
    "HashOf",
    "Hello",
    "Here",
    "Leave",
    "Lost",
    "Nonce",
    "Process",
    "Question",
    "State",
    "Told",
    "Welcome",
    "WriteFiles",
]

A = TypeVar("A", covariant=True)


@dataclass(frozen=True, slots=True)
class Process:
    """How processes of the same node find this one: its number, and in which node's and container's count it is so."""

    pid: int
    host: str
    space: int


# -- how a connection begins ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nonce:
    """A process asks the judge to show that it knows the job's token."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The judge shows it, and asks the same."""

    proof: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The process shows it, and says who it is."""

    proof: str
    rank: int
    process: Process


@dataclass(frozen=True, slots=True)
class Here:
    """The judge has taken the process in, and says which process it is itself."""

    judge: Process


# -- what a process says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class State:
    """The state of a communicator: how many calls can be compared, whether more can come, and how long the oldest wait
    lasts. Its first rank also says which ranks it has."""

    name: str
    calls: int
    state: str
    wait: int
    ranks: list[int] | None


@dataclass(frozen=True, slots=True)
class Told:
    """What has changed in a process. ``leaving`` says that it makes no more calls."""

    states: list[State]
    leaving: bool


@dataclass(frozen=True, slots=True)
class Beat:
    """The sender is there. The judge answers with the same."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the calls of this communicator now. The judge answers with the same when it has."""

    name: str


@dataclass(frozen=True, slots=True)
class Dump:
    """Let all processes write their files. The judge answers with the same when they have."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """These ranks of the world are lost. The job goes on without them."""

    ranks: list[int]


@dataclass(frozen=True, slots=True)
class Failed:
    """The watcher of this process has failed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To the question of this number."""

    number: int
    value: Any


# -- what the judge says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forget:
    """This communicator is over on all its ranks."""

    name: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Let the calls of this communicator end with an error, which ``text`` is. If its ranks ``differ``, ``calls`` says
    what each of them has called. The ``silent`` processes do not answer."""

    name: str
    differ: bool
    calls: list[tuple[int, str]]
    text: str
    silent: list[Process]


@dataclass(frozen=True, slots=True)
class End:
    """The job ends. The ``silent`` processes do not answer."""

    silent: list[Process]


@dataclass(frozen=True, slots=True)
class Leave:
    """Nobody needs this process any more."""


# -- what the judge asks ----------------------------------------------------------------------------------------------


class Question(Generic[A]):
    """A question whose answer is an ``A``."""

    __slots__ = ()

    @classmethod
    def answer(cls) -> Any:
        """The type of the answer."""
        return get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]  # every generic class has them


@dataclass(frozen=True, slots=True)
class Account:
    """What a rank says of one call of a communicator, and what it does now."""

    begun: int
    """So many calls has it begun."""
    state: str
    number: int
    """The number of the call that this account is about."""
    description: str | None
    """What was called, None if the rank does not know the call."""
    site: str | None
    """Where in the program."""
    waits: bool
    """Whether the rank is in this call now."""
    message: str | None
    """The message that it waits for."""
    seconds: float
    """How long its oldest wait has lasted."""
    stuck: float
    """The same, if the wait does not end by itself."""
    where: str
    """Where the program is now."""
    leaving: bool
    """Whether the program has ended."""


@dataclass(frozen=True, slots=True)
class CallsOf(Question[int | None]):
    """How many calls of this communicator can be compared? None if it is not known here."""

    name: str


@dataclass(frozen=True, slots=True)
class HashOf(Question[str | None]):
    """What is the hash of so many first calls? None if it is forgotten."""

    name: str
    calls: int


@dataclass(frozen=True, slots=True)
class AccountOf(Question[Account | None]):
    """What was the call of this number, or the last one if that is None?"""

    name: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Files:
    """The folder in which a process has written its files, or why it could not."""

    folder: str
    failure: str


@dataclass(frozen=True, slots=True)
class WriteFiles(Question[Files]):
    """Write the files. ``since`` has the first call of each communicator that is of interest."""

    why: str
    since: dict[str, int]


@dataclass(frozen=True, slots=True)
class Clock(Question[float]):
    """What time is it by ``time.monotonic``?"""


Event = tuple[str, int, str, int, str, str, int, float, float, str]
"""A call for a trace: communicator, number, description, bytes, route, site, thread, begin, duration, and how far it
came."""


@dataclass(frozen=True, slots=True)
class EventList:
    """The calls of a process for a trace. ``rest`` is the number of the first one that is still to be told.
    ``tables`` says by which table of measurements each communicator chooses."""

    host: str
    main: int
    threads: list[tuple[int, str]]
    events: list[Event]
    rest: int | None
    tables: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class EventsFrom(Question[EventList]):
    """What has been called, from this number on?"""

    first: int


@dataclass(frozen=True, slots=True)
class Ask:
    """The question of this number."""

    number: int
    question: CallsOf | HashOf | AccountOf | WriteFiles | Clock | EventsFrom


MESSAGES = {
    kind.__name__: kind
    for kind in (
        *(Nonce, Welcome, Hello, Here),
        *(Told, Beat, Compare, Dump, Lost, Failed, Answer),
        *(Ask, Forget, Fail, End, Leave),
    )
}
"""All kinds, by their names."""

"""The interface of a fabric, which connects the ranks of a communicator.

A Communicator knows only this of an MPI library, or of threads. It checks all arguments before it calls a fabric."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choose import Choice, CommInfo
from mpicoll.calls.plan import Plan
from mpicoll.devices.device import Device
from mpicoll.errors import MessageError, TimeoutError
from mpicoll.fabrics.routes.devices.scratch import Scratch
from mpicoll.machine.backoff import Backoff
from mpicoll.supervise.record import Record

if TYPE_CHECKING:
    from mpicoll.fabrics.mpi import MPIFabric


class Transfer(ABC):
    """A message bound to its memory, its peer and its tag. It can be started any number of times. ``start`` returns
    what stands for the message while it is under way; only this object knows what that is."""

    now: Callable[[], object] | None = None
    """Sends or receives at once, at less cost than ``start`` and ``wait``. None where there is no such way."""
    overruns = False  # whether a longer message than this one expects may have been written beyond its memory
    start: Callable[[], Any]

    @abstractmethod
    def wait(self, begun: Any) -> object:
        """Return when the message is complete."""

    @abstractmethod
    def test(self, begun: Any) -> bool:
        """Whether the message is complete."""

    # Only a message has these.
    cancel: Callable[[Any], bool]  # stops receiving. Returns False if the message has come already
    source: Callable[..., int]
    """The rank from which a complete message came: the last one that came ``now``, if nothing was begun."""
    tag: Callable[[Any], int]
    arrived: Callable[..., int | None]
    """The number of elements that came; None where the message ends within an element."""


class AtOnce(Transfer):
    """A message that is complete when it has begun."""

    def wait(self, begun: object) -> None:
        """It is complete."""

    def test(self, begun: object) -> bool:
        return True


class Nobody(AtOnce):
    """A message to or from ``null``, which is nobody: it moves nothing."""

    def __init__(self, null: int, any_tag: int, count: int) -> None:
        self.now, self.start = lambda: None, lambda: null  # something, which stands for it
        self.source, self.tag = lambda begun=None: null, lambda begun: any_tag
        self.arrived = lambda begun=None: count  # the array stays as it is, and that is right


class Envelope(NamedTuple):
    """What a message is known by before it is received: the rank that sent it, its tag and its length in bytes."""

    source: int
    tag: int
    nbytes: int


Data = bytes | bytearray | memoryview  # an object, pickled


class ObjectTransport(ABC):
    """The collectives that move objects among the ranks of a fabric, as bytes."""

    @abstractmethod
    def bcast(self, data: bytes | None, root: int) -> Data:
        """The root's object. The other ranks give None."""

    @abstractmethod
    def gather(self, data: bytes, root: int) -> list[Data] | None:
        """All ranks' objects at the root, and None on the other ranks."""

    @abstractmethod
    def allgather(self, data: bytes, call: str = "allgather_object") -> list[Data]:
        """All ranks' objects. ``call`` is what the ranks have called."""

    @abstractmethod
    def scatter(self, datas: Sequence[bytes] | None, root: int) -> Data:
        """The object that the root has for this rank. The other ranks give None."""

    @abstractmethod
    def alltoall(self, datas: Sequence[bytes]) -> list[Data]:
        """The objects that all ranks have for this rank."""


class Messages(ABC):
    """The messages of a fabric: of arrays, and of objects as bytes. A source or a tag that is None stands for any."""

    by_library = True  # whether the MPI library carries them, if there is one

    @abstractmethod
    def outgoing(self, b: Buffer, dest: int, tag: int) -> Transfer | None:
        """A message of this memory, whose array it does not hold. None if it must be a copy of memory with gaps."""

    @abstractmethod
    def incoming(self, b: Buffer, source: int | None, tag: int | None) -> Transfer | None:
        """A message into this memory."""

    def both(self, sent: Buffer, dest: int, sendtag: int, taken: Buffer, source: int | None,
             recvtag: int | None) -> Transfer | None:  # fmt: skip
        """Two messages at once, which stand for the one that comes. None if there is no such call."""
        return None

    @abstractmethod
    def probe(self, source: int | None, tag: int | None, waits: bool = False) -> Envelope | None:
        """The first message that has come for such a receive, None if there is none yet. It may be able to wait."""

    def unreceived(self, looks: bool = True) -> Sequence[Envelope]:
        """The messages that have come and that no receive has asked for, as far as the fabric knows, and as it knows
        without a look if it does not ``look``."""
        return ()

    def of_objects(
        self, receives: bool, peer: int | None, tag: int | None, convert: Callable[[Any], Any]
    ) -> object | None:
        """The kernel's message of objects with this rank; None if the kernel carries none. ``convert`` makes bytes of
        them, or objects of bytes."""
        return None

    @abstractmethod
    def send(self, data: bytes, dest: int, tag: int) -> object:
        """Send an object, and return when somebody takes it."""

    @abstractmethod
    def start(self, data: bytes, dest: int, tag: int) -> Callable[[], bool]:
        """Start to send one. Returns what says whether it has left, and holds its memory."""

    @abstractmethod
    def take(self, source: int | None, tag: int | None, waits: bool) -> Data | None:
        """Receive an object. None if none has come, unless this ``waits``."""

    def send_object(self, data: bytes, dest: int, tag: int, backoff: Backoff | None) -> None:
        """Send an object. Raises TimeoutError if nobody takes it while the ``backoff`` lasts, which may raise, too."""
        if backoff is None:
            self.send(data, dest, tag)
            return
        has_left = self.start(data, dest, tag)
        not_taken.append(has_left)
        while not has_left():
            if not backoff.wait():
                raise TimeoutError
        not_taken.remove(has_left)

    def recv_object(self, source: int | None, tag: int | None, backoff: Backoff | None) -> Data:
        """Receive an object. Raises TimeoutError if none comes while the ``backoff`` lasts, which may raise, too."""
        wrong: MessageError | None = None
        while (came := self.take(source, tag, backoff is None)) is None:
            if wrong is not None:
                raise wrong
            try:
                if backoff is not None and not backoff.wait():
                    raise TimeoutError
            except MessageError as e:
                wrong = e  # unless an object has come meanwhile, before what is wrong
        return came


not_taken: list[Callable[[], bool]] = []  # what holds objects that nobody has taken yet: MPI reads their memory


class NeverRaised(Exception):
    """The ``failure`` of a fabric that reports no errors."""


class Fabric(ABC):
    """The ranks of one communicator, seen from one of them. No collective can take a message for one of its own."""

    rank: int
    size: int
    info: CommInfo  # what the choice of algorithms depends on. It is found out when the fabric is made
    failure: type[Exception]  # what is raised when the fabric itself reports an error
    most_tag: int  # the largest tag of a message
    nobody: int
    anybody: int
    any_tag: int
    """What programs of MPI write: ``MPI.PROC_NULL``, ``MPI.ANY_SOURCE`` and ``MPI.ANY_TAG``."""
    any_thread: bool  # whether several threads of this rank may use the fabric at the same time
    address: Callable[[Any], int]  # where a NumPy array's memory begins
    messages: Messages
    objects: ObjectTransport
    dumps: Callable[[Any], bytes] = pickle.dumps
    loads: Callable[[Any], Any] = pickle.loads
    """How programs' objects become bytes, and objects again."""

    @property
    def elastic(self) -> MPIFabric | None:
        """This fabric, if its ranks can be lost while the others go on."""
        return None

    @abstractmethod
    def bind(self, call: Call, choice: Choice, record: Record) -> list[Plan]:
        """The steps of a call whose memory it ``takes``. The ``record`` gets the name of another way that they take."""

    @abstractmethod
    def bind_on_device(self, call: Call, choice: Choice, device: Device, scratch: Scratch) -> Plan:
        """The plan by the schedule that ``choice`` names. Raises DeviceError if no messages can be sent from there."""

    @abstractmethod
    def together(self, nbytes: int) -> Sequence[NDArray[np.uint8]] | None:
        """Memory of each rank that all can use. None, on all, if there is none. Collective among ranks of one node."""

    def usable(self, b: Buffer) -> bool:
        """Whether the fabric can read and write this memory without a copy."""
        return b.plain and b.device == "cpu"

    def takes(self, call: Call, choice: Choice) -> bool:
        """Whether it can do so with the memory of a call that is carried out as ``choice`` says."""
        return all(b is None or self.usable(b) for b in (call.send, call.recv))

    def begin(self, call: Call, choice: Choice, record: Record, by_library: bool) -> Transfer | None:
        """A collective that does not block. ``choice`` is the one for the call if it did, and ``by_library`` says
        whether the MPI library's own may carry it out. It may be under way several
        times. None if the fabric has no such call; all ranks of the call get the same answer."""
        return None

    def neighbours(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The ranks from which this one receives, and to which it sends, in a process topology. None without one."""
        return None

    def bind_neighbours(self, operation: str, send: Buffer, recv: Buffer, block: int) -> Plan:
        """The plan of a collective among neighbours, with ``block`` elements for each of them."""
        raise AssertionError("there is no topology")

    @abstractmethod
    def beside(self) -> Callable[[], Fabric]:
        """A function for another thread: it makes a fabric of the same ranks, whatever this thread does meanwhile. It
        is collective among such threads, and all ranks ask for theirs in the same order."""

    @abstractmethod
    def node(self) -> Fabric:
        """A fabric of the ranks on this rank's node. Collective, as is every method that makes a fabric."""

    @abstractmethod
    def split(self, color: int | None, key: int) -> Fabric | None:
        """A fabric of the ranks of the same ``color``, in the order of their keys; None for color None."""

    @abstractmethod
    def subset(self, ranks: Sequence[int]) -> Fabric:
        """A fabric of these ranks. This rank is one of them, and only they call this."""

    @abstractmethod
    def bounded_allgather(self) -> Callable[[int, float], list[int | None]]:
        """A function that tells all ranks a number of 63 bits, and returns all ranks' numbers, in rank order. None
        stands for a rank whose number did not come within so many seconds."""

    @abstractmethod
    def in_world(self) -> list[int]:
        """The number of each rank in the job's world, in rank order. Empty if some of them are in no common world."""

    @abstractmethod
    def free(self) -> None:
        """Give back what the fabric holds."""

    # -- what mpicoll itself tells other ranks ------------------------------------------------------------------------

    def allgather(self, obj: Any) -> list[Any]:
        return [pickle.loads(data) for data in self.objects.allgather(pickle.dumps(obj))]

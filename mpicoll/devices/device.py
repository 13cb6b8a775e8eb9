"""What a device can do: the protocol between routes and the device that owns the memory of a call.

A device works through streams, as in CUDA. A stream does its work in order, and the host does not wait for it. An event
marks a place in a stream. The host waits for events, and other streams can wait for them too. So nothing in mpicoll
ever waits for a whole device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from mpicoll.arrays.buffers import Buffer
from mpicoll.arrays.dtypes import Dtype, Reduction
from mpicoll.errors import DeviceFailure
from mpicoll.machine.shared_memory import Block

View = Any  # a buffer as the device's streams take it. It does not keep the buffer's memory


class Handle(NamedTuple):
    """Memory of a device, as another process of the node can open it: an allocation, and a place in it."""

    process: int
    allocation: bytes
    offset: int


class Memory(Protocol):
    """Memory that a device has allocated. It is given back when the object is dropped."""

    @property
    def address(self) -> int:
        """Where it begins."""


class Event(ABC):
    """A place in a stream."""

    @abstractmethod
    def wait(self) -> None:
        """Let the host wait until the stream has come to this place. Raises DeviceFailure if its work failed before."""

    @abstractmethod
    def is_past(self) -> bool:
        """Whether the stream has come to this place. This does not wait. Raises DeviceFailure if its work failed."""


class Stream(ABC):
    """Work that a device does in the order in which it is handed in. No method waits for it."""

    @abstractmethod
    def copy(self, target: View, source: View) -> None:
        """Copy elements. Both views have the same shape and dtype, and each may be of the host or of the device."""

    @abstractmethod
    def combine(
        self, rows: Sequence[View], out: View, reduction: Reduction, factors: Sequence[Any] | None = None
    ) -> None:
        """``out`` = the rows combined in their order, as ``kernels.reduce_rows`` does it on the host."""

    @abstractmethod
    def divide(self, values: View, divisor: int, dtype: Dtype) -> None:
        """Divide values in place, as ``kernels.divide`` does it on the host."""

    @abstractmethod
    def record(self) -> Event:
        """The place after all work that was handed in so far."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """Let all later work of this stream begin after the event, which is of the same device."""


class Device(ABC):
    """A device with memory that the host cannot touch. ``name`` identifies it, as in ``cuda:0``."""

    name: str

    @abstractmethod
    def current(self) -> Stream:
        """The stream on which the caller works now. Raises StateError if no work can be handed in there."""

    @abstractmethod
    def new_stream(self) -> Stream:
        """A new stream."""

    @abstractmethod
    def using(self, stream: Stream) -> AbstractContextManager[None]:
        """Let this stream be the current one of this thread in a ``with`` statement."""

    def follow(self, stream: int) -> bool:
        """Let the current stream go on after this stream of another library, by the number in the interface of its
        arrays. Whether it is another stream than the current one. Raises StateError as ``current`` does."""
        return False

    @abstractmethod
    def allocate(self, nbytes: int, stream: Stream) -> Memory:
        """Memory of the device, which is given back in the stream's turn. Raises MemoryError if there is none."""

    @abstractmethod
    def pinned(self, nbytes: int) -> Block:
        """Host memory that the device copies to by itself. Raises MemoryError if there is none."""

    @abstractmethod
    def pin(self, memory: Block) -> Block:
        """This host memory, pinned as long as the returned array is there. Who drops it has waited for the device. No
        part of it may be pinned already. Raises MemoryError if the device does not take it."""

    @abstractmethod
    def view(self, b: Buffer) -> View:
        """A buffer of the host or of this device, in any layout, for the device's streams."""

    @abstractmethod
    def reduces(self, reduction: Reduction) -> bool:
        """Whether ``combine`` serves this reduction."""

    @abstractmethod
    def known_to_mpi(self) -> bool:
        """Whether the MPI library says that it takes this device's memory. What it does with it, a try has to show."""

    @property
    @abstractmethod
    def model(self) -> str:
        """The device and its driver, as ``NVIDIA H200, CUDA 13.0``. To the MPI library, a model is alike."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What no other device of the node is called, and each process calls this one."""

    @abstractmethod
    def again(self) -> Callable[[], Device]:
        """Makes a Device of this device, or of one that is like it, in another process. It can be pickled."""

    @abstractmethod
    def for_mpi(self, address: int, nbytes: int) -> int:
        """The address at which MPI reaches this memory, on which no work is pending."""

    @abstractmethod
    def export(self, address: int) -> Handle | None:
        """A handle of the memory at this address; None if other processes cannot open it."""

    @abstractmethod
    def open(self, handle: Handle) -> int | None:
        """Where the allocation of another process's handle begins here, None if it cannot be opened. Once at a time."""

    @abstractmethod
    def close(self, start: int) -> None:
        """Give up an allocation that was opened: as long as it is open, its owner cannot give it back."""


Tell = Callable[[Any], list[Any]]  # tells all ranks something, and returns what all ranks told


def failure_before(event: Event) -> str | None:
    """Wait for the event. Returns what has failed before it, None if nothing has."""
    try:
        event.wait()
    except DeviceFailure as e:
        return str(e)
    return None


def raise_any(operation: str, told: Sequence[str | None]) -> None:
    """Raise DeviceFailure on every rank if one has told of a failure: going on, it sends what is not its data."""
    failed = [f"rank {rank}: {failure}" for rank, failure in enumerate(told) if failure is not None]
    if failed:
        raise DeviceFailure(f"{operation}: {'; '.join(failed)}")

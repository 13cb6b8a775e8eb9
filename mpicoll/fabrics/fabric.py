"""The interface of a fabric, which connects the ranks of a communicator.

A Communicator knows only this of an MPI library, or of threads. It checks all arguments before it calls a fabric.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from mpicoll.arrays.buffers import Buffer
from mpicoll.calls.call import Call
from mpicoll.calls.choice import Choice
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.rules import Rules
from mpicoll.devices.device import Device
from mpicoll.routes.devices.scratch import Scratch

__all__ = ["ElasticFabric", "Fabric", "Transfer"]


class Transfer(ABC):
    """The message of one buffer, while it is under way."""

    source: int | None = None
    """The rank from which the message came. It is None until the message is complete."""
    arrived: int | None = None
    """The number of elements that arrived. It is None until the message is complete, and where it ends within an
    element."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the message is complete."""

    @abstractmethod
    def test(self) -> bool:
        """Whether the message is complete."""

    @abstractmethod
    def cancel(self) -> bool:
        """Stop receiving. Returns False if the message has come already."""


class Fabric(ABC):
    """The ranks of one communicator, seen from one of them. No collective can take a message for one of its own."""

    rank: int
    size: int
    library: str
    """The MPI library's name, empty where there is none."""
    one_node: bool
    """Whether all ranks are on one node."""
    shares: bool
    """Whether long messages go through memory that all ranks share. It may become False until it is ``settled``."""
    settled: bool
    """Whether ``shares`` is final."""
    rules: Rules
    """The rules by which algorithms are chosen. They are equal on all ranks."""
    failure: type[Exception] | tuple[()]
    """What is raised when the fabric itself reports an error."""
    most_tag: int
    """The largest tag of a message."""
    any_thread: bool
    """Whether several threads of this rank may use the fabric at the same time."""
    address: Callable[[Any], int]
    """Where a NumPy array's memory begins."""
    dumps: Callable[[Any], bytes] = pickle.dumps
    loads: Callable[[Any], Any] = pickle.loads
    """How programs' objects become bytes, and objects again."""

    @property
    def elastic(self) -> ElasticFabric | None:
        """This fabric, if its ranks can be lost while the others go on."""
        return None

    @abstractmethod
    def bind(self, call: Call, choice: Choice, workspace: Workspace) -> Plan:
        """The plan of a call, which is carried out as ``choice`` says. Its buffers must be ``usable``."""

    @abstractmethod
    def bind_on_device(self, call: Call, choice: Choice, device: Device, scratch: Scratch) -> Plan:
        """The plan of a call on plain memory of a device, whose schedule ``choice`` is. Raises DeviceError if messages
        cannot be sent from there."""

    @abstractmethod
    def is_long(self, call: Call) -> bool:
        """Whether the call may have long messages. The answer is the same on all its ranks."""

    @abstractmethod
    def settle(self) -> None:
        """Get memory that all ranks share, if there is any. After that ``shares`` is final. Collective."""

    def usable(self, b: Buffer) -> bool:
        """Whether the fabric can read and write this memory without a copy."""
        return b.plain and b.device == "cpu"

    @abstractmethod
    def start_send(self, b: Buffer, dest: int, tag: int) -> Transfer:
        """Start to send."""

    @abstractmethod
    def start_recv(self, b: Buffer, source: int | None, tag: int) -> Transfer:
        """Start to receive, from any rank if ``source`` is None."""

    @abstractmethod
    def node(self) -> Fabric:
        """A fabric of the ranks on this rank's node. Collective, as is every method that makes a fabric."""

    @abstractmethod
    def split(self, color: int | None, key: int) -> Fabric | None:
        """A fabric of the ranks that give the same ``color``, in the order of their keys. A rank that gives None is in
        none of them."""

    @abstractmethod
    def subset(self, ranks: Sequence[int]) -> Fabric:
        """A fabric of these ranks. This rank is one of them, and only they call this."""

    @abstractmethod
    def prepare_to_tell(self) -> None:
        """Make ``tell`` possible. Collective."""

    @abstractmethod
    def tell(self, word: int, seconds: float) -> list[int | None]:
        """Tell all ranks a number of 63 bits, and return all ranks' numbers, in rank order.

        None stands for a rank whose number did not come within these seconds."""

    @abstractmethod
    def in_world(self) -> list[int]:
        """The number of each rank in the job's world, in rank order. Empty if some of them are in no common world."""

    @abstractmethod
    def free(self) -> None:
        """Give back what the fabric holds."""

    # -- objects, pickled ---------------------------------------------------------------------------------------------

    @abstractmethod
    def bcast(self, obj: Any, root: int) -> Any:
        """The root's object."""

    @abstractmethod
    def gather(self, obj: Any, root: int) -> list[Any] | None:
        """All ranks' objects at the root, and None on the other ranks."""

    @abstractmethod
    def allgather(self, obj: Any) -> list[Any]:
        """All ranks' objects."""

    @abstractmethod
    def scatter(self, objs: Sequence[Any] | None, root: int) -> Any:
        """The object that the root has for this rank."""

    @abstractmethod
    def alltoall(self, objs: Sequence[Any]) -> list[Any]:
        """The objects that all ranks have for this rank."""

    @abstractmethod
    def send(self, obj: Any, dest: int, tag: int, seconds: float | None) -> None:
        """Send an object. Raises TimeoutError if nobody takes it within these seconds, unless that is None."""

    @abstractmethod
    def recv(self, source: int | None, tag: int, seconds: float | None) -> Any:
        """Receive an object. Raises TimeoutError if none comes within these seconds, unless that is None."""


class ElasticFabric(Fabric):
    """A fabric whose ranks can be lost while the others go on."""

    @abstractmethod
    def lost(self) -> list[int]:
        """The ranks that are known to be lost. What other ranks know may differ."""

    @abstractmethod
    def is_cut(self, e: BaseException) -> bool:
        """Whether the fabric has raised ``e`` because ranks were lost, or because a rank has ``cut`` the fabric."""

    @abstractmethod
    def cut(self) -> None:
        """Make every call fail on all ranks, those that are under way too. Any thread may call this."""

    @abstractmethod
    def shrink(self) -> ElasticFabric:
        """A fabric of the ranks that are left. They all call this, whatever state the fabric is in."""

    @abstractmethod
    def all_could(self, could: bool) -> bool:
        """Whether all ranks that are left say True. They all get the same answer, whatever state the fabric is in."""

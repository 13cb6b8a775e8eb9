"""The Communicator, and how one makes others of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from mpicoll.calls.arguments import MOST_INT, checked_int, checked_rank, sequence_of
from mpicoll.communicator.collectives import Collectives
from mpicoll.communicator.messages import Messages
from mpicoll.communicator.objects import Objects
from mpicoll.errors import ArgumentError
from mpicoll.fabrics.fabric import Fabric

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Communicator"]


class Communicator(Collectives, Messages, Objects):
    """Collectives and messages among the ranks of an MPI communicator.

    ``comm`` is any mpi4py intra-communicator, MPI.COMM_WORLD when None; the Communicator keeps duplicates of its own,
    so that nothing here meets messages of the program's (making one is collective). The first one made in a process
    loads MPI, which initialises it unless ``mpi4py.rc`` says otherwise.

    An array ``x`` is a NumPy array, a torch tensor, or anything with the buffer protocol, DLPack or
    ``__cuda_array_interface__``. All ranks of a call give the same op, dtype, number of elements, root and algorithm.

    One rule for all collectives: ``x`` is only read, and the result is returned. It is a new array where ``out`` is
    None, and ``out`` where you give one. ``out=x`` works in place, which is fastest: nothing is allocated.
    (``bcast`` has no ``out``: it fills ``x`` on all ranks but the root.)

    ``check="full"`` has all ranks agree on each collective before data moves. Ranks that make different calls get
    MismatchError, on every rank, with what each of them called. If ranks do not come within ``timeout`` seconds, the
    others get TimeoutError, which names them. Both are for all ranks alike. None takes rank 0's MPICOLL_CHECK (``off``)
    and MPICOLL_TIMEOUT (1800).

    ``op`` is one of ``sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor``, mpi4py's name of one of these
    (``MPI.SUM``), or ``Op.premul_sum(factor)``.
    ``algorithm`` names how it is done; None leaves it to ``select``.

    Raises :class:`~mpicoll.errors.ArgumentError` (DtypeError, DeviceError) before any data moves, on the rank whose
    argument is wrong; StateError after ``free`` or MPI's end; MessageError if what arrives is not what was asked for.
    """

    def __init__(
        self, comm: MPI.Intracomm | Fabric | None = None, check: str | None = None, timeout: float | None = None
    ) -> None:
        super().__init__(comm, check, timeout)
        self._settings = (check, timeout)
        self._node: Communicator | None = None
        self._leaders: tuple[Communicator | None] | None = None

    # -- communicators made of this one -------------------------------------------------------------------------------

    # Not functools.cached_property: until Python 3.12 all instances share its lock, and ranks may be threads.

    @property
    def node(self) -> Communicator:
        """The ranks that share this one's memory. The first use is collective."""
        if self._node is None:
            self.agree("node", "node")
            self._node = Communicator(self._fabric.node(), *self._settings)
        return self._node

    @property
    def leaders(self) -> Communicator | None:
        """The lowest rank of each node; None on the other ranks. The first use is collective."""
        if self._leaders is None:
            self._leaders = (self.split(0 if self.node.rank == 0 else None),)
        return self._leaders[0]

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same ``color`` (>= 0), in order of ``key``; None gives None."""
        self.agree("split", "split")
        mine = None if color is None else checked_int(color, 0, MOST_INT, "split", "color", "None or ")
        part = self._fabric.split(mine, checked_int(key, -MOST_INT, MOST_INT, "split", "key"))
        return None if part is None else Communicator(part, *self._settings)

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of these ranks, in this order; collective among them alone, None on any other rank."""
        self.check_open("subset")
        mine = [checked_rank(r, self.size, "subset", "ranks") for r in sequence_of(ranks, "subset", "ranks", "ranks")]
        if len(set(mine)) != len(mine) or not mine:
            raise ArgumentError("subset", "ranks", "different ranks, at least one", repr(mine))
        if self.rank not in mine:
            return None
        return Communicator(self._fabric.subset(mine), *self._settings)

    def free(self) -> None:
        """Give the communicator back; collective. What is used of it afterwards raises StateError."""
        for child in (*(self._leaders or ()), self._node):
            if child is not None:
                child.free()
        self._leaders = self._node = None
        if not self.closed:
            self._under_way.let_go()
            self.close("it was freed")
            self._fabric.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.free()
        else:  # freeing is collective, and the other ranks may never come to it
            self.close("its with block raised")

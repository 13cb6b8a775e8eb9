"""The Communicator, and how one makes others of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, Self

from mpicoll.calls import settings
from mpicoll.calls.arguments import MOST_INT, checked_int, checked_rank, sequence_of
from mpicoll.communicator.collectives import Collectives, NonBlocking
from mpicoll.communicator.engine.engine import Engine
from mpicoll.communicator.memory import Memory
from mpicoll.communicator.neighbours import Neighbours
from mpicoll.communicator.objects import Objects
from mpicoll.communicator.point_to_point import PointToPoint
from mpicoll.errors import ArgumentError, RankLost, StateError
from mpicoll.fabrics.fabric import Fabric
from mpicoll.supervise.ending import limited
from mpicoll.supervise.record import FREED, Record

if TYPE_CHECKING:
    from mpi4py import MPI


class Communicator(Memory, Collectives, PointToPoint, NonBlocking, Neighbours, Objects):
    """Collectives and messages among the ranks of an MPI communicator.

    ``comm`` is an intra-communicator of mpi4py, by default MPI.COMM_WORLD. Making a Communicator is collective: it
    duplicates ``comm``, so its messages never meet those of the program. The first one in a process loads and
    initialises MPI, unless ``mpi4py.rc`` says otherwise.

    Arrays
        NumPy arrays, torch tensors, and anything with the buffer protocol, DLPack or ``__cuda_array_interface__``, in
        any layout. Any dtype of fixed size can be moved. Which ones can be reduced depends on the operation.
    Results
        An input (``x`` or ``xs``) is only read, and the result is returned: a new array, or ``out`` if given. ``out``
        has the input's dtype and device. Only :meth:`bcast` has no ``out``: it writes to ``x``, except on the root.
    Operations
        ``op`` is ``"sum"`` by default. Others are ``prod, min, max, avg, band, bor, bxor, land, lor, lxor``, mpi4py's
        constants for these (``MPI.MAX``), and :meth:`Op.premul_sum(factor) <mpicoll.Op.premul_sum>`.
    Algorithms
        ``algorithm`` names how a call is carried out: ``"native"`` is the MPI library's own collective, and ``mpicoll
        algorithms`` lists the others. By default, mpicoll chooses.
    Agreement
        All ranks make the same calls in the same order, with the same dtype, operation, root and algorithm and, where
        blocks have equal lengths, the same number of elements. ``check`` says who watches over that:

        - ``"watch"``: a thread of each process compares the calls while the ranks go on. If calls differ, if a rank has
          ended while others wait for it, or if a call takes more than ``timeout`` seconds, the job ends with a table of
          what each rank did.
        - ``"full"``: in addition, all ranks agree on each collective before data moves. If their calls differ, every
          rank gets :class:`~mpicoll.errors.MismatchError`, which says who called what. If a rank does not arrive within
          ``timeout`` seconds, the others get :class:`~mpicoll.errors.TimeoutError`, which names it.
        - ``"off"``: nobody.
    Reproducible bits
        With ``reproducible``, every reduction combines values in the order of the ranks: ((0 + 1) + 2) and so on. Its
        bits depend on the values and the number of ranks alone. A call may then name no ``algorithm`` but
        ``"exchange"``.
    Settings
        All ranks need the same. By default, they are those of rank 0's environment: MPICOLL_CHECK (``watch``),
        MPICOLL_TIMEOUT (1800) and MPICOLL_REPRODUCIBLE (0).
    Errors
        A wrong argument raises :class:`~mpicoll.errors.ArgumentError`, DtypeError or DeviceError on the rank that gave
        it, before any data moves. :class:`~mpicoll.errors.MessageError`: what arrived is not what was asked for, or the
        MPI library reports an error. :class:`~mpicoll.errors.StateError`: the communicator can no longer be used.

    At the end of a ``with`` block, it is freed."""

    def __init__(
        self,
        comm: MPI.Comm | Fabric | None = None,
        check: str | None = None,
        timeout: float | None = None,
        reproducible: bool | None = None,
    ) -> None:
        with limited("making a communicator", settings.limit()):
            super().__init__(Engine(comm, check, timeout, reproducible))
        self._node: Communicator | None = None

    def __repr__(self) -> str:
        closed = f", which cannot be used any more: {self.closed}" if self.closed else ""
        return f"<mpicoll.Communicator: rank {self.rank} of {self.size}{closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Communicator cannot be pickled or copied: another process makes one of its own")

    def _made_of(self, fabric: Fabric) -> Communicator:
        """A communicator of some of the ranks, with this one's settings."""
        return Communicator(fabric, *self._engine.settings)

    # -- communicators made of this one -------------------------------------------------------------------------------

    # Not functools.cached_property: until Python 3.12 all instances share its lock, and ranks may be threads.

    @property
    def node(self) -> Communicator:
        """A communicator of the ranks that run on this rank's node. The first use is collective."""
        if self._node is None:
            engine = self._engine
            self._node = engine.together(Record("node"), lambda: self._made_of(engine.fabric.node()))
        return self._node

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Make a communicator of the ranks that give the same ``color``. Collective.

        ``color`` is an int of 0 or more; a rank that gives None gets None. Ranks are numbered in order of ``key``, and
        where keys are equal in order of their ranks here."""
        mine = None if color is None else checked_int(color, 0, MOST_INT, "split", "color", "None or ")
        place = checked_int(key, -MOST_INT, MOST_INT, "split", "key")

        def made() -> Communicator | None:
            part = self._engine.fabric.split(mine, place)
            return None if part is None else self._made_of(part)

        return self._engine.together(Record("split"), made)

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """Make a communicator of these ranks, in this order. Collective among them alone.

        Every one of them gives the same ``ranks``, which are different and at least one. A rank that is not among them
        gets None."""
        self._engine.check_open("subset")
        mine = [checked_rank(r, self.size, "subset", "ranks") for r in sequence_of(ranks, "subset", "ranks", "ranks")]
        if len(set(mine)) != len(mine) or not mine:
            raise ArgumentError("subset", "ranks", "different ranks, at least one", repr(mine))
        if self.rank not in mine:
            return None
        engine = self._engine
        with limited(f"subset({mine})", engine.limit):
            try:
                return self._made_of(engine.fabric.subset(mine))
            except (engine.failure, RankLost) as e:  # of MPI, or of the new communicator
                raise engine.error("subset", e) from e

    def shrink(self) -> Communicator:
        """Make a communicator of the ranks that are left, in the same order. Collective among them.

        For a program that was started with ``mpicoll run --elastic``, after :class:`~mpicoll.errors.RankLost`. This
        communicator is closed, if it was not. Ranks may have been in different calls: let them agree from where to go
        on. A rank that is lost meanwhile is left out, too."""
        fabric = self._engine.fabric.elastic
        if fabric is None:
            raise StateError("shrink: ranks can be lost only in a job that was started with `mpicoll run --elastic`")
        if self._engine.recorder.state == FREED:
            self._engine.check_open("shrink")
        self._engine.close("it was shrunk")
        fabric.cut()  # a rank may still be in a call
        while True:
            with limited("shrink", self._engine.limit):
                try:
                    made = self._made_of(fabric.shrink())
                except RankLost:  # another one
                    made = None
                if fabric.all_could(made is not None) and made is not None:
                    return made
            if made is not None:
                made._engine.close("its ranks are to be shrunk again")

    def free(self) -> None:
        """Give back what MPI holds for the communicator, and for its ``node``. Collective.

        Collectives that were begun are completed first. Every later use raises StateError. Freeing it again does
        nothing."""
        if self._node is not None:
            self._node.free()
            self._node = None
        self._engine.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.free()
        else:  # freeing is collective, and the other ranks may never come to it
            self._engine.close("its with block raised")

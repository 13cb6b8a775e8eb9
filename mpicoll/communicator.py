"""The Communicator: one method per collective, on any array."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy import ndarray

from mpicoll import lifetime, results, staging
from mpicoll.buffers import as_buffer
from mpicoll.call import MOST_INT, checked, checked_int, checked_rank, sequence_of
from mpicoll.dtypes import Op, Reduction, name_of
from mpicoll.errors import ArgumentError, MessageError, StateError
from mpicoll.fabrics import Fabric, fabric_of
from mpicoll.messages import Messages
from mpicoll.objects import Objects
from mpicoll.plan import Plan, Plans, Workspace, key_by
from mpicoll.requests import UnderWay
from mpicoll.schedule import Schedule
from mpicoll.select import Ranks, schedule, select

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Communicator"]


class Communicator(Messages, Objects):
    """Collectives and messages among the ranks of an MPI communicator.

    ``comm`` is any mpi4py intra-communicator, MPI.COMM_WORLD when None; the Communicator keeps duplicates of its own,
    so that nothing here meets messages of the program's (making one is collective). The first one made in a process
    loads MPI, which initialises it unless ``mpi4py.rc`` says otherwise.

    An array ``x`` is a NumPy array, a torch tensor, or anything with the buffer protocol, DLPack or
    ``__cuda_array_interface__``. All ranks of a call give the same op, dtype, number of elements, root and algorithm.

    One rule for all collectives: ``x`` is only read, and the result is returned. It is a new array where ``out`` is
    None, and ``out`` where you give one. ``out=x`` works in place, which is fastest: nothing is allocated.
    (``bcast`` has no ``out``: it fills ``x`` on all ranks but the root.)

    ``op`` is one of ``sum, prod, min, max, avg, band, bor, bxor, land, lor, lxor``, mpi4py's name of one of these
    (``MPI.SUM``), or ``Op.premul_sum(factor)``.
    ``algorithm`` names how it is done; None leaves it to ``select``.

    Raises :class:`~mpicoll.errors.ArgumentError` (DtypeError, DeviceError) before any data moves, on the rank whose
    argument is wrong; StateError after ``free`` or MPI's end; MessageError if what arrives is not what was asked for.
    """

    def __init__(self, comm: MPI.Intracomm | Fabric | None = None) -> None:
        self._fabric = fabric = fabric_of(comm)
        self._failure, self._address, self._key = fabric.failure, fabric.address, key_by(fabric.address)
        self._plans, self._workspace = Plans(), Workspace()
        self._planned = self._plans.get
        self._under_way = UnderWay(fabric.failure)
        self._node: Communicator | None = None
        self._leaders: tuple[Communicator | None] | None = None
        self.rank: int = fabric.rank
        self.size: int = fabric.size
        self._ranks = Ranks(fabric.size, fabric.one_node, fabric.library, fabric.shares, fabric.rules)
        lifetime.watch(self)

    # -- collectives ------------------------------------------------------------------------------------------------

    def allreduce(self, x: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Every rank gets the reduction over all ranks, element by element: ``out`` has ``x``'s number of elements."""
        if out is None:
            out = results.like("allreduce", x)
        # What plan and carry_out do, in line: the one call in which every tenth of a microsecond counts.
        try:
            there = None if out is x else self._key(out) or out
            at: Any
            if type(x) is ndarray:
                at = ("allreduce", self._address(x), x.size, x.dtype, x.flags.num, there, op, 0, algorithm)
            else:
                at = ("allreduce", *(self._key(x) or ()), there, op, 0, algorithm)
            plan = self._planned(at)
        except (TypeError, ValueError, BufferError):
            plan = None
        if plan is None:
            return self._elementwise("allreduce", x, out, op, 0, algorithm)
        try:
            plan()
        except BaseException as e:
            self._break(plan, "allreduce", e)
            raise
        return out

    def reduce(self, x: Any, op: str | Op = "sum", root: int = 0, out: Any = None, algorithm: str | None = None) -> Any:
        """The root gets the reduction over all ranks. ``out`` is unused on the others, and their result is None."""
        if self.rank == root:
            return self._elementwise("reduce", x, out, op, root, algorithm)
        self._run("reduce", x, None, op, root, algorithm)
        return None

    def bcast(self, x: Any, root: int = 0, algorithm: str | None = None) -> Any:
        """Every rank's ``x`` becomes the root's."""
        self._run("bcast", x, None, None, root, algorithm)
        return x

    def scan(self, x: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the reduction over ranks 0 to r."""
        return self._elementwise("scan", x, out, op, 0, algorithm)

    def exscan(self, x: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the reduction over ranks 0 to r - 1. Rank 0 has no result: its ``out`` is left as it is, and
        without one it gets None."""
        result = self._elementwise("exscan", x, out, op, 0, algorithm)
        return None if out is None and self.rank == 0 else result

    def allgather(self, x: Any, out: Any = None, algorithm: str | None = None) -> Any:
        """Every rank gets every rank's ``x``, in rank order: ``out`` is (size, \\*x.shape)."""
        if out is None:
            out = results.one_each("allgather", x, self.size)
        self._run("allgather", x, out, None, 0, algorithm)
        return out

    def gather(self, x: Any, root: int = 0, out: Any = None, algorithm: str | None = None) -> Any:
        """The root gets every rank's ``x``, in rank order: ``out`` is (size, \\*x.shape) there, unused elsewhere."""
        if out is None and self.rank == root:
            out = results.one_each("gather", x, self.size)
        self._run("gather", x, out, None, root, algorithm)
        return out if self.rank == root else None

    def scatter(self, xs: Any, root: int = 0, out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the root's ``xs[r]``. ``xs`` is (size, \\*out.shape) and used at the root only; ``out`` may be
        None there alone."""
        if out is None and self.rank == root:
            out = results.block("scatter", xs, self.size)
        self._run("scatter", xs, out, None, root, algorithm)
        return out

    def reduce_scatter(self, xs: Any, op: str | Op = "sum", out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets the reduction over all ranks of their ``xs[r]``: ``xs`` is (size, \\*out.shape)."""
        if out is None:
            out = results.block("reduce_scatter", xs, self.size)
        self._run("reduce_scatter", xs, out, op, 0, algorithm)
        return out

    def alltoall(self, xs: Any, out: Any = None, algorithm: str | None = None) -> Any:
        """Rank r gets every rank's ``xs[r]``, in rank order: ``xs`` and ``out`` are (size, ...)."""
        if out is None:
            b = as_buffer(xs, "alltoall", "x")
            out = b.like(b.shape)
        self._run("alltoall", xs, out, None, 0, algorithm)
        return out

    def barrier(self, algorithm: str | None = None) -> None:
        """Returns when all ranks have called it."""
        self._run("barrier", None, None, None, 0, algorithm)

    # -- uneven blocks: counts are rows of dimension 0 ----------------------------------------------------------------

    def allgatherv(self, x: Any, counts: Sequence[int], out: Any = None, algorithm: str | None = None) -> Any:
        """Every rank gets every rank's rows: rank r gives ``counts[r]``, ``out`` has their sum."""
        if out is None:
            out = results.rows("allgatherv", x, counts, self.size)
        self._run("allgatherv", x, out, None, 0, algorithm, recvcounts=counts)
        return out

    def gatherv(
        self, x: Any, counts: Sequence[int], root: int = 0, out: Any = None, algorithm: str | None = None
    ) -> Any:
        """The root gets every rank's rows: rank r gives ``counts[r]``, the root's ``out`` has their sum."""
        if out is None and self.rank == root:
            out = results.rows("gatherv", x, counts, self.size)
        self._run("gatherv", x, out, None, root, algorithm, recvcounts=counts)
        return out if self.rank == root else None

    def scatterv(
        self, xs: Any, counts: Sequence[int], root: int = 0, out: Any = None, algorithm: str | None = None
    ) -> Any:
        """Rank r gets ``counts[r]`` of the root's rows, in order. ``out`` may be None at the root alone."""
        if out is None and self.rank == root:
            out = results.rows("scatterv", xs, counts, self.size, self.rank)
        self._run("scatterv", xs, out, None, root, algorithm, sendcounts=counts)
        return out

    def reduce_scatterv(
        self, xs: Any, counts: Sequence[int], op: str | Op = "sum", out: Any = None, algorithm: str | None = None
    ) -> Any:
        """Rank r gets ``counts[r]`` rows, in order, of the reduction over all ranks."""
        if out is None:
            out = results.rows("reduce_scatterv", xs, counts, self.size, self.rank)
        self._run("reduce_scatterv", xs, out, op, 0, algorithm, sendcounts=counts)
        return out

    def alltoallv(
        self,
        xs: Any,
        sendcounts: Sequence[int],
        recvcounts: Sequence[int],
        out: Any = None,
        algorithm: str | None = None,
    ) -> Any:
        """Rank r is given ``sendcounts[r]`` rows, in order, and ``recvcounts[r]`` rows are taken from it."""
        if out is None:
            out = results.rows("alltoallv", xs, recvcounts, self.size)
        self._run("alltoallv", xs, out, None, 0, algorithm, sendcounts=sendcounts, recvcounts=recvcounts)
        return out

    # -- communicators made of this one -------------------------------------------------------------------------------

    # Not functools.cached_property: until Python 3.12 all instances share its lock, and ranks may be threads.

    @property
    def node(self) -> Communicator:
        """The ranks that share this one's memory. The first use is collective."""
        if self._node is None:
            self._check_open("node")
            self._node = Communicator(self._fabric.node())
        return self._node

    @property
    def leaders(self) -> Communicator | None:
        """The lowest rank of each node; None on the other ranks. The first use is collective."""
        if self._leaders is None:
            self._leaders = (self.split(0 if self.node.rank == 0 else None),)
        return self._leaders[0]

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same ``color`` (>= 0), in order of ``key``; None gives None."""
        self._check_open("split")
        mine = None if color is None else checked_int(color, 0, MOST_INT, "split", "color", "None or ")
        part = self._fabric.split(mine, checked_int(key, -MOST_INT, MOST_INT, "split", "key"))
        return None if part is None else Communicator(part)

    def subset(self, ranks: Sequence[int]) -> Communicator | None:
        """A communicator of these ranks, in this order; collective among them alone, None on any other rank."""
        self._check_open("subset")
        mine = [checked_rank(r, self.size, "subset", "ranks") for r in sequence_of(ranks, "subset", "ranks", "ranks")]
        if len(set(mine)) != len(mine) or not mine:
            raise ArgumentError("subset", "ranks", "different ranks, at least one", repr(mine))
        if self.rank not in mine:
            return None
        return Communicator(self._fabric.subset(mine))

    # -- lifetime -----------------------------------------------------------------------------------------------------

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

    def close(self, why: str) -> None:
        """Forget the MPI communicators, without freeing them: every later use raises StateError saying ``why``."""
        self.closed = why
        self._plans.clear()
        self._address, self._key = _nowhere, key_by(_nowhere)  # MPICH ends a process that asks it after its end

    def abandon(self, why: str) -> None:
        """Close it in a process that may not call MPI."""
        _cut_short.append(self._plans)
        self._plans = Plans()
        self._planned = self._plans.get
        self._under_way.lost = why
        self.close(why)

    @property
    def ranks(self) -> Ranks:
        """What is known of the ranks. Whether they share memory is known for good once a long call has needed it."""
        return replace(self._ranks, shares=self._fabric.shares)

    @property
    def any_thread(self) -> bool:
        """Whether several threads of a rank may use it at once: MPI_THREAD_MULTIPLE."""
        return self._fabric.any_thread

    closed = ""
    """Why it cannot be used any more, empty while it can."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.free()
        else:  # freeing is collective, and the other ranks may never come to it
            self.close("its with block raised")

    # -- how a call is carried out ------------------------------------------------------------------------------------

    def plan(
        self,
        collective: str,
        x: Any = None,
        out: Any = None,
        op: str | Op | None = None,
        root: int = 0,
        algorithm: str | None = None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> Plan:
        """The call of the method named ``collective``, checked and bound: ``carry_out`` makes it happen, on any thread.

        The arrays must be kept until then. Without ``out`` an element-wise collective works in place; the others need
        one.
        """
        if op is not None and type(op) is not str and type(op) is not Op:
            op = name_of(op, collective)
        at: Any = None
        try:
            here = None if x is None else self._key(x)
            there = None if out is None else self._key(out)
            if (here is not None or x is None) and (there is not None or out is None) and type(root) is int:
                at = (collective, *(here or ()), there, op, root, algorithm)
                if sendcounts is not None or recvcounts is not None:
                    at = (*at, _fixed(sendcounts), _fixed(recvcounts), np.shape(x), np.shape(out))
            plan = self._planned(at)
        except TypeError:  # an argument that cannot be hashed is a wrong one: checked() says which
            at = plan = None
        if plan is None:
            self._check_open(collective)
            call = checked(collective, self.rank, self.size, x, out, op, root, sendcounts, recvcounts)
            choice = (collective, call.reduction, call.root, call.nbytes(self.size), algorithm)
            how = partial(_how, self._fabric, self._ranks, self._fabric.is_long(call), *choice)
            plan, lasts = staging.bind(self._fabric, call, how, self._workspace)
            if lasts and at is not None:
                self._plans.keep(at, plan)
        return plan

    def carry_out(self, plan: Plan, collective: str) -> None:
        """Run a plan; what the MPI library reports becomes a MessageError. After that, or whatever else ends it
        midway, the communicator cannot be used any more: its ranks may stand at different places of the call."""
        if self.closed:
            self._check_open(collective)
        try:
            plan()
        except BaseException as e:
            self._break(plan, collective, e)
            raise

    def _run(
        self,
        collective: str,
        x: Any,
        out: Any,
        op: str | Op | None,
        root: int,
        algorithm: str | None,
        sendcounts: Sequence[int] | None = None,
        recvcounts: Sequence[int] | None = None,
    ) -> None:
        self.carry_out(self.plan(collective, x, out, op, root, algorithm, sendcounts, recvcounts), collective)

    def _break(self, plan: Plan, collective: str, e: BaseException) -> None:
        """The plan has raised ``e``."""
        if isinstance(e, StateError):
            return  # ranks that are threads: what broke their job is said by every later call
        _cut_short.append((plan, e.__traceback__, _frames()))
        self.close(f"its {collective} ended midway, so its ranks may be at different calls; make a new one ({e})")
        if isinstance(e, self._failure):
            raise MessageError(f"{collective}: the MPI library reports: {e}") from e

    def _check_open(self, operation: str) -> None:
        if self.closed:
            raise StateError(f"{operation}: this communicator cannot be used any more: {self.closed}")

    def _elementwise(self, collective: str, x: Any, out: Any, op: str | Op, root: int, algorithm: str | None) -> Any:
        """A call whose result has as many elements as ``x``; returns where it is."""
        if out is None:
            out = results.like(collective, x)
        self._run(collective, x, None if out is x else out, op, root, algorithm)
        return out


_cut_short: list[object] = []
"""Plans that did not come to their end, with the frames that hold their arrays, or that a forked child has of its
parent: MPI may still write to that memory, and a child may not give their requests back."""


def _frames() -> list[FrameType]:
    """The frames of mpicoll's that are around the caller. A plan holds addresses: these hold the arrays."""
    found = []
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__package__") or "").startswith("mpicoll"):
        found.append(frame)
        frame = frame.f_back
    return found


def _how(
    fabric: Fabric,
    ranks: Ranks,
    is_long: bool,
    collective: str,
    reduction: Reduction | None,
    root: int,
    nbytes: int,
    algorithm: str | None,
) -> str | Schedule:
    """How the call is carried out, by what is known of shared memory now; whether there is any matters to a long one
    alone."""
    shares = is_long and fabric.shares
    now = ranks if ranks.shares == shares else replace(ranks, shares=shares)
    chosen = select(collective, reduction, nbytes, now, root, algorithm)
    return schedule(collective, chosen, fabric.rank, fabric.size, root, nbytes) or chosen


def _nowhere(array: Any) -> int:
    """In the place of an array's address, where no plan is kept any more."""
    return 0


def _fixed(counts: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if counts is None else tuple(counts)

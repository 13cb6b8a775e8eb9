"""Ranks that an MPI library connects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import cast

import numpy as np
from mpi4py import MPI

from mpicoll.algorithms.steps import Nodes
from mpicoll.arrays.buffers import Buffer
from mpicoll.calls import choose
from mpicoll.calls.call import Call
from mpicoll.calls.choose import Choice, CommInfo, schedule_of
from mpicoll.calls.plan import Plan, Workspace
from mpicoll.calls.settings import Settings
from mpicoll.devices.device import Device
from mpicoll.errors import ArgumentError, DeviceError, RankLost
from mpicoll.fabrics.bounded_allgather import BoundedAllgather
from mpicoll.fabrics.fabric import Fabric, Messages, Transfer
from mpicoll.fabrics.messages import Collective, MPIMessages, NodeMessages
from mpicoll.fabrics.mpi_communicators import lost_of, make, shrunk, together
from mpicoll.fabrics.mpi_objects import MPIObjects
from mpicoll.fabrics.routes import exchange, native, node, scheduled, wide
from mpicoll.fabrics.routes.devices.scheduled import ScheduledPlan
from mpicoll.fabrics.routes.devices.scratch import Scratch
from mpicoll.fabrics.transports.mpi_requests import MPIRequests, longest_piece
from mpicoll.launch import elastic
from mpicoll.launch.cores import oversubscribed
from mpicoll.launch.launch_env import is_elastic
from mpicoll.machine.mpi_library import may_take_device_memory
from mpicoll.machine.shared_memory import Block, share
from mpicoll.supervise.record import Record

_OF_LOSSES = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
"""What MPI reports when ranks are lost, as far as it does not say so of single messages only."""
_left: list[MPI.Intracomm] = [MPI.COMM_WORLD]
"""The job's ranks; last those that are left: MPI makes no communicators of one whose ranks are lost."""


class MPIFabric(Fabric):
    """Two duplicates of an MPI communicator, one for collectives and one for messages, which so stay apart."""

    messages: Messages
    _takes_devices: bool  # whether rank 0's MPI library may take the memory of GPUs

    failure = MPI.Exception
    nobody, anybody, any_tag = MPI.PROC_NULL, MPI.ANY_SOURCE, MPI.ANY_TAG
    address = staticmethod(MPI.Get_address)
    # A program may have told mpi4py to pickle in another way. See MPI.pickle in mpi4py's manual.
    dumps, loads = staticmethod(MPI.pickle.dumps), staticmethod(MPI.pickle.loads)

    def __init__(
        self,
        comm: MPI.Comm,
        parent: MPIFabric | None = None,
        duplicate: Callable[[MPI.Intracomm], MPI.Intracomm] = MPI.Intracomm.Dup,
    ) -> None:
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            given = "MPI.COMM_NULL" if comm == MPI.COMM_NULL else repr(comm)
            raise ArgumentError("Communicator", "comm", "an mpi4py intra-communicator that was not freed", given)
        self._comm = self._for_messages = MPI.Intracomm()
        self._bounded: BoundedAllgather | None = None
        self._is_elastic = is_elastic()
        self._freeing = threading.Lock()  # the watcher's thread may cut it meanwhile
        try:
            self._connect(comm, parent, duplicate)
            self._check()
        except Exception as e:
            if not self.is_cut(e):
                raise
            self.cut()  # other ranks may still be in it
            lost = self.lost()
            raise RankLost("Communicator", lost, self.in_world() if lost else ()) from e

    def _connect(
        self, comm: MPI.Intracomm, parent: MPIFabric | None, duplicate: Callable[[MPI.Intracomm], MPI.Intracomm]
    ) -> None:
        self._comm, self._for_messages = make(duplicate, comm), make(duplicate, comm)
        self.rank, self.size = self._comm.rank, self._comm.size
        self.most_tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0  # Open MPI says None of a split communicator
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        # If all ranks of the parent are on one node, then so are these. It need not be found out.
        of_one = parent is not None and parent.info.one_node
        nodes = Nodes.one(self.size) if of_one else self._found_nodes()
        self._workspace, self._wide = Workspace(), Workspace()
        # Those of a process topology. MPI takes microseconds to say them.
        self._neighbours = self._comm.inoutedges if isinstance(self._comm, MPI.Topocomm) else None
        self._crowded: bool = parent is not None and parent._crowded
        settings = self._common_settings(parent, nodes)
        may_meet = nodes.alone and not self._is_elastic
        met = node.meet(self._comm, self._crowded) if may_meet else None
        self._node = None if met is None else met[0]
        self.messages = MPIMessages(self._for_messages)
        # Where MPI takes the memory of GPUs as it lies, it carries all messages, so that their order is one.
        if met is not None and not self._takes_devices:
            self.messages = NodeMessages(met[1], self.nobody)
        self.objects = MPIObjects(self._comm, self._check if self._is_elastic else None)
        self.info = CommInfo(nodes, MPI.get_vendor()[0], self._node is not None, settings)

    @classmethod
    def of_world(cls, ranks: Sequence[int] | None = None) -> MPIFabric:
        """A fabric of these of the job's ranks, which all call this. None means all that are left."""
        if ranks is not None:
            try:
                return cls._among(_left[-1], ranks, None)
            except MPI.Exception as e:
                if e.Get_error_class() not in _OF_LOSSES:
                    raise
                raise RankLost("Communicator", []) from e
        world = MPI.COMM_WORLD
        if not is_elastic():
            return cls(world)
        # Open MPI 5.0.11 may crash where a rank is lost while a communicator is made. To duplicate the world while
        # nobody is known to be lost, and to shrink it else, crashed in 2 of 12 runs. To shrink it always did so in 1
        # of 16.
        while True:
            left = shrunk(world)
            made = cls(left, None, shrunk)
            if made.size == left.size:  # else one more was lost
                _left.append(left)
                elastic.go_on_with(made.in_world(), world.size, world.rank)
                return made

    @classmethod
    def _among(cls, comm: MPI.Intracomm, ranks: Sequence[int], parent: MPIFabric | None) -> MPIFabric:
        all_ranks = comm.Get_group()
        members = all_ranks.Incl(ranks)
        with together(comm, ranks) if is_elastic() else nullcontext():
            part = make(comm.Create_group, members)
        for group in (all_ranks, members):
            group.Free()
        child = cls(part, parent)
        part.Free()
        return child

    def _found_nodes(self) -> Nodes:
        node = make(self._comm.Split_type, MPI.COMM_TYPE_SHARED, self.rank)
        has_all_ranks, lowest = node.size == self.size, node.bcast(self.rank)
        node.Free()
        return Nodes.one(self.size) if has_all_ranks else Nodes.named(self._comm.allgather(lowest))

    def _common_settings(self, parent: MPIFabric | None, nodes: Nodes) -> Settings:
        """Rank 0's settings, for all ranks: all must choose the same algorithm, whatever their environments."""
        if parent is not None and parent.info.one_node == nodes.alone:
            self._takes_devices = parent._takes_devices
            return parent.info.settings
        self._crowded = nodes.alone and self.size > 1 and oversubscribed(self._comm)
        told = None
        if self.rank == 0:
            told = parent.info.settings if parent is not None else Settings.of_environment(), may_take_device_memory()
        common: Settings
        common, self._takes_devices = self._comm.bcast(told)
        return common

    @property
    def elastic(self) -> MPIFabric | None:
        return self if self._is_elastic else None

    def takes(self, call: Call, choice: Choice) -> bool:
        return super().takes(call, choice) or (choice.route == choose.NODE and node.takes_gaps(call))

    def bind(self, call: Call, choice: Choice, record: Record) -> list[Plan]:
        steps = self._bound(call, choice, record)
        if choice.zero_copy and choice.route != choose.NODE:
            assert self._node is not None
            steps = [node.bind(self._node, self.rank, self.size, call, True, record, steps).run]
        return [*steps, self._check] if self._is_elastic else steps

    def _bound(self, call: Call, choice: Choice, record: Record) -> list[Plan]:
        comm, workspace = self._comm, self._workspace
        match choice.route:
            case "native" if choice.in_parts and call.collective.scatters and call.collective.reduces:
                return self._scheduled(call, choice._replace(schedule=choose.between_memories(call.operation)))
            case "native":
                return native.bind(comm, call, workspace, choice.in_parts)
            case "exchange":
                return exchange.bind(comm, call, workspace)
            case "node":
                assert self._node is not None
                return [node.bind(self._node, self.rank, self.size, call, choice.zero_copy, record).run]
            case "wide":
                of_floats = choice._replace(route="native" if choice.schedule is None else "scheduled")
                return wide.bind(call, lambda floats: self._bound(floats, of_floats, record), self._wide)
            case "scheduled":
                steps = self._scheduled(call, choice)
                return [native.compared(comm, call), *steps] if choice.in_parts is None else steps
        raise AssertionError(choice.route)

    def _scheduled(self, call: Call, choice: Choice) -> list[Plan]:
        schedule = schedule_of(choice, call, self.rank, self.info.nodes)
        make = partial(MPIRequests, self._comm, call.reduction)
        return scheduled.bind(self.rank, self.size, call, schedule, self._workspace, make, longest_piece())

    def bind_on_device(self, call: Call, choice: Choice, device: Device, scratch: Scratch) -> Plan:
        if choice.schedule is None:
            expected = "a schedule, as in device:ring"
            raise ArgumentError(call.operation, "algorithm", expected, choice.name)
        if not device.known_to_mpi():
            expected = f"one that needs no MPI that takes memory of {device.name}, as 'staged'"
            raise DeviceError(call.operation, "algorithm", expected, "'device'")
        return ScheduledPlan(self._comm, call, schedule_of(choice, call, self.rank, self.info.nodes), device, scratch)

    def together(self, nbytes: int) -> list[Block] | None:
        return share(self._comm, nbytes, bounded=False)

    def begin(self, call: Call, choice: Choice, record: Record, by_library: bool) -> Transfer | None:
        if (choice.route == choose.NODE or choice.zero_copy) and not self._is_elastic:
            assert self._node is not None
            plan = node.bind(self._node, self.rank, self.size, call, choice.zero_copy, record)
            return cast(Transfer, plan)  # as which the kernel's plans are registered
        by_library &= call.reduction is None or call.reduction.mpi
        if not by_library or not call.extent_is_common or call.extent(self.size) > choose.MAX_COUNT:
            return None
        return Collective(native.begin(self._comm, call), self._check if self._is_elastic else None)

    def neighbours(self) -> tuple[Sequence[int], Sequence[int]] | None:
        return self._neighbours

    def bind_neighbours(self, operation: str, send: Buffer, recv: Buffer, block: int) -> Plan:
        assert isinstance(self._comm, MPI.Topocomm)
        assert self._neighbours is not None
        if isinstance(self.messages, NodeMessages):
            on_grid = self._comm.Get_topology() == MPI.CART
            return self.messages.exchange(operation, send, recv, block, self._neighbours, on_grid)
        return native.bind_neighbours(self._comm, operation, send, recv, block)

    def beside(self) -> Callable[[], Fabric]:
        return lambda: MPIFabric(self._for_messages, self)  # no collective but this one goes through it

    def node(self) -> Fabric:
        return self._child(make(self._comm.Split_type, MPI.COMM_TYPE_SHARED, self.rank))

    def split(self, color: int | None, key: int) -> Fabric | None:
        part = make(self._comm.Split, MPI.UNDEFINED if color is None else color, key)
        return None if color is None else self._child(part)

    def subset(self, ranks: Sequence[int]) -> Fabric:
        return self._among(self._comm, ranks, self)

    def _child(self, comm: MPI.Comm) -> Fabric:
        child = MPIFabric(comm, self)
        comm.Free()
        return child

    def in_world(self) -> list[int]:
        mine, world = self._comm.Get_group(), MPI.COMM_WORLD.Get_group()
        found = MPI.Group.Translate_ranks(mine, None, world)
        for group in (mine, world):
            group.Free()
        return [] if MPI.UNDEFINED in found else [*found]

    def lost(self) -> list[int]:
        """The ranks that are known to be lost. What other ranks know may differ."""
        with self._freeing:
            return [] if self._comm == MPI.COMM_NULL else lost_of(self._comm)

    def is_cut(self, e: BaseException) -> bool:
        """Whether MPI has raised ``e`` because ranks were lost, or because a rank has ``cut`` the fabric."""
        return self._is_elastic and (
            (isinstance(e, MPI.Exception) and e.Get_error_class() in _OF_LOSSES)
            or any(comm.Is_revoked() for comm in self._all())
            or bool(self.lost())
        )

    def _check(self) -> None:
        """Raise MPI.Exception if ranks are lost. Some collectives of Open MPI do not report that, and write nothing."""
        if self._is_elastic and (self._comm.Is_revoked() or self._comm.Get_failed() != MPI.GROUP_EMPTY):
            raise MPI.Exception(MPI.ERR_PROC_FAILED)

    def cut(self) -> None:
        """Make every call fail on all ranks, those that are under way too. Any thread may call this."""
        with self._freeing:
            for comm in self._all():
                comm.Revoke()

    def _all(self) -> list[MPI.Comm]:
        """The communicators that there are now."""
        every = self._comm, self._for_messages, MPI.COMM_NULL if self._bounded is None else self._bounded.comm
        return [comm for comm in every if comm != MPI.COMM_NULL]

    def shrink(self) -> MPIFabric:
        """A fabric of the ranks that are left. They all call this, whatever state the fabric is in."""
        made = MPIFabric(self._comm, self, shrunk)
        elastic.without.update({*self.in_world()}.difference(made.in_world()))
        return made

    def all_could(self, could: bool) -> bool:
        """Whether all ranks that are left say True. They all get the same answer, whatever state the fabric is in."""
        flag = np.array([could], np.intc)
        request = self._comm.Iagree(flag)
        with suppress(MPI.Exception):  # says that a rank was lost. The answer is that of all that are left
            request.Wait()
        return bool(flag[0])

    def free(self) -> None:
        if isinstance(self.messages, NodeMessages):
            self.messages.free()
            self.messages = MPIMessages(self._for_messages)
        self._node = None
        with self._freeing:
            if self._bounded is not None:
                self._bounded.free()
            self._comm.Free()
            self._for_messages.Free()

    def bounded_allgather(self) -> Callable[[int, float], list[int | None]]:
        self._bounded = self._bounded or BoundedAllgather(make(self._comm.Dup))
        return self._bounded.numbers

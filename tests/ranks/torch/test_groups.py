"""The default group and others: made, named, destroyed, and made again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed

import mpicoll.torch
from mpicoll.errors import ArgumentError, LaunchError, StateError, TimeoutError
from tests.ranks.torch.cases import SORTS_RANKS, Group
from tests.ranks.torch.mistakes import RIGHT, Scene

dist: Any = mpicoll.torch

BACKENDS = ["mpicoll", "MPICOLL", "cpu:mpicoll", "cpu:mpicoll,cuda:mpicoll"]
BACKENDS += [None, "gloo", "nccl", "mpi", "ucc", "GLOO", "cpu:gloo,cuda:nccl"]


def works(group: Any = None) -> None:
    """The group carries out a collective."""
    x = torch.ones(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.all_reduce(x, group=group)
    assert x.item() == dist.get_world_size(group)


@pytest.fixture
def without_group(pytestconfig: pytest.Config) -> None:
    """Destroy the default group. The next test makes one again. Ranks that are threads destroy their own."""
    if not pytestconfig.getoption("--threads") and dist.is_initialized():
        dist.destroy_process_group()


# -- the default group ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_group")
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_is_mpicoll(backend: str | None) -> None:
    dist.init_process_group(backend)
    assert dist.get_backend() == "mpicoll"
    works()
    dist.destroy_process_group()
    assert not dist.is_initialized()


@pytest.mark.processes
@pytest.mark.usefixtures("without_group")
def test_groups_are_made_and_destroyed_again_and_again() -> None:
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    seen = []
    for name in ("", "mine"):
        dist.init_process_group(
            "gloo", "mpi://", timedelta(minutes=5), size, rank, store=None, group_name=name, device_id=None
        )
        assert dist.is_initialized()
        assert dist.is_available()
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        world = dist.group.WORLD
        assert world is dist.GroupMember.WORLD
        assert world.timeout == timedelta(minutes=5)
        assert dist.get_process_group_ranks(None) == dist.get_process_group_ranks(world) == list(range(size))
        inner = dist.new_group(list(range(size)))
        works()
        works(world)
        works(inner)
        dist.destroy_process_group()
        assert dist.group.WORLD is None
        for g in (world, inner):
            with pytest.raises(StateError, match="destroyed"):
                dist.barrier(g)
        seen.append(world)
    assert seen[0] is not seen[1]


def test_a_second_init_is_refused(size: int) -> None:
    world = dist.group.WORLD
    with pytest.raises(StateError, match="init_process_group: the default group exists already"):
        dist.init_process_group("mpicoll")
    assert dist.group.WORLD is world
    works()


@pytest.mark.processes
@pytest.mark.usefixtures("without_group")
@pytest.mark.parametrize("wrong", ["world_size", "rank"])
def test_a_world_that_is_not_mpis_is_refused(wrong: str) -> None:
    from mpi4py import MPI

    actual = {"world_size": MPI.COMM_WORLD.size, "rank": MPI.COMM_WORLD.rank}[wrong]
    with pytest.raises(
        LaunchError, match=rf"init_process_group: {wrong}={actual + 1} was given, but MPI says {actual}"
    ):
        dist.init_process_group("gloo", **{wrong: actual + 1})
    assert not dist.is_initialized()
    dist.init_process_group("gloo", **{wrong: actual})
    works()


@pytest.mark.usefixtures("without_group")
def test_wrong_arguments_of_init() -> None:
    ours = "init_process_group: "
    rows: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"backend": "tcp"}, ArgumentError, f"{ours}backend: expected None or one of .*gloo.*; given 'tcp'"),
        ({"backend": "cpu:gloo,cuda:tcp"}, ArgumentError, f"{ours}backend: .*; given 'cpu:gloo,cuda:tcp'"),
        ({"timeout": 5}, ArgumentError, f"{ours}timeout: expected a positive datetime.timedelta; given 5"),
        ({"timeout": timedelta(seconds=-1)}, ArgumentError, f"{ours}timeout: expected a positive"),
        ({"enable_reconfigure": True}, ArgumentError, f"{ours}enable_reconfigure: expected False"),
    ]
    for arguments, error, said in rows:
        with pytest.raises(error, match=said):
            dist.init_process_group(**arguments)
        assert not dist.is_initialized()


GIVES_ELSE = {"recv", "recv_object_list", "P2POp"} | {name for name in RIGHT if name.startswith("get_")}
"""Functions from which outsiders get something else than None."""
TAKES_GROUP = [name for name in RIGHT if "group" in signature(getattr(dist, name)).parameters]


def call(function: str, group: Any) -> object:
    """Call the function with right arguments, for one rank, in this group. None is the default group."""
    in_group = {"group": group} if function in TAKES_GROUP else {}
    return getattr(dist, function)(**{**RIGHT[function](OneRank()), **in_group})


class OneRank(Scene):
    """What a call may use where there is no group."""

    def __init__(self) -> None:
        self.rank, self.size, self.alone, self.made = 0, 1, None, []


@pytest.mark.usefixtures("without_group")
def test_nothing_works_without_a_default_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for function in RIGHT.keys() - {"batch_isend_irecv"}:
        said = rf"{function}: there is no default group: call init_process_group\(\) first"
        with pytest.raises(StateError, match=said):
            call(function, None)
    for function, ask in (
        ("get_node_local_rank", dist.get_node_local_rank),
        ("empty", lambda: dist.empty(3)),
        ("share_", lambda: dist.share_(torch.ones(3))),
    ):
        with pytest.raises(StateError, match=f"{function}: there is no default group"):
            ask()
    assert dist.group.WORLD is None
    assert dist.get_node_local_rank(fallback_rank=3) == 3


# -- other groups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.int64, np.array, torch.tensor])
def test_a_root_that_is_no_int_of_python(number: Callable[[int], Any], rank: int, size: int) -> None:
    """Whatever Python can use as an index will do."""
    x = torch.tensor([float(rank)])
    dist.broadcast(x, group_src=number(size - 1))
    assert x.item() == size - 1
    dist.reduce(x, dst=number(0))
    assert x.item() == (size - 1) * (size if rank == 0 else 1)


def test_names_of_ranks(groups: list[Group], rank: int, size: int) -> None:
    for g in groups:
        if g.rank is None:
            assert g.handle == dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(g.handle) == -1
            assert dist.get_world_size(g.handle) == -1
            continue
        assert dist.get_rank(g.handle) == g.rank
        assert dist.get_world_size(g.handle) == g.size
        assert dist.get_backend(g.handle) == "mpicoll"
        assert dist.get_process_group_ranks(g.handle) == g.ranks
        handle = g.handle
        for in_group, global_rank in enumerate(g.ranks):
            for number in (int, np.int64):
                assert dist.get_group_rank(handle, number(global_rank)) == in_group
                assert dist.get_global_rank(handle, number(in_group)) == global_rank
    assert 0 <= dist.get_node_local_rank() < size
    assert dist.get_node_local_rank(fallback_rank=99) == dist.get_node_local_rank()


@pytest.mark.skipif(not SORTS_RANKS, reason=f"new_group of torch {torch.__version__} has no sort_ranks")
def test_ranks_are_sorted_unless_told_otherwise(size: int) -> None:
    backwards = list(range(size))[::-1]
    for sort_ranks, expected in ((True, sorted(backwards)), (False, backwards)):
        g = dist.new_group(backwards, sort_ranks=sort_ranks, group_desc="mine", timeout=timedelta(seconds=9))
        assert dist.get_process_group_ranks(g) == expected
        assert g.timeout == timedelta(seconds=9)
        assert "mine" in repr(g)
        dist.destroy_process_group(g)
    every = dist.new_group()
    assert dist.get_process_group_ranks(every) == sorted(backwards)
    assert every.timeout == dist.group.WORLD.timeout
    dist.destroy_process_group(every)


@pytest.mark.mpi(min_size=2)
def test_only_the_members_need_to_make_a_group(rank: int, size: int) -> None:
    """Each pair of neighbours makes a group. The last rank makes none if their number is odd."""
    pair = [rank - rank % 2, rank - rank % 2 + 1]
    if pair[1] < size:
        g = dist.new_group(pair, use_local_synchronization=True)
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=g)
        assert x.item() == sum(pair)
        dist.destroy_process_group(g)


@pytest.mark.processes
@pytest.mark.parametrize("function", [name for name in TAKES_GROUP if name not in GIVES_ELSE])
def test_an_outsider_is_warned_and_takes_no_part(function: str, rank: int) -> None:
    said = f"{function}: rank {rank} is not in the given group, and takes no part in the call"
    outside = dist.GroupMember.NON_GROUP_MEMBER
    with pytest.warns(UserWarning, match=said) as caught:
        assert call(function, outside) is None
    [warning] = [w for w in caught if w.category is UserWarning]
    assert warning.filename == __file__
    with pytest.warns(UserWarning, match="recv: rank"):
        assert dist.recv(torch.ones(1), 0, group=outside) == -1
    with pytest.warns(UserWarning, match="recv_object_list: rank"):
        assert dist.recv_object_list([1], 0, group=outside) == -1


@pytest.mark.mpi(min_size=2)
def test_a_destroyed_group_does_not_take_others_with_it(rank: int, size: int) -> None:
    first, second = dist.new_group(list(range(size))), dist.new_group([0, 1])
    dist.destroy_process_group(first)
    with pytest.raises(StateError, match=r"all_reduce: .* cannot be used any more: it was destroyed"):
        dist.all_reduce(torch.ones(1), group=first)
    if rank < 2:
        works(second)
        dist.destroy_process_group(second)
    works()


# -- barriers that say who is missing ---------------------------------------------------------------------------------


def test_monitored_barrier(groups: list[Group]) -> None:
    for g in groups:
        if g.rank is not None:
            dist.monitored_barrier(g.handle, timeout=timedelta(seconds=60))
            dist.monitored_barrier(g.handle, wait_all_ranks=True)


@pytest.mark.slow
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("missing", ["last", "first", "two"])
def test_a_monitored_barrier_names_who_is_missing(rank: int, size: int, missing: str) -> None:
    """The ranks that come name those that do not. Those come later, and the next barrier works."""
    absent = {"last": {size - 1}, "first": {0}, "two": {size - 1, max(1, size - 2)}}[missing]
    dist.barrier()  # so that those that come are there in time
    if rank not in absent:
        names = ", ".join(str(r) for r in sorted(absent))
        with pytest.raises(TimeoutError, match=rf"monitored_barrier: after .*, these ranks did not come: {names}$"):
            dist.monitored_barrier(timeout=timedelta(seconds=1))
    dist.barrier()
    for _ in range(2):
        dist.monitored_barrier(timeout=timedelta(seconds=60))
    works()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("tag", [0, 32765, 32766])
def test_messages_of_the_program_beside_a_monitored_barrier(rank: int, size: int, tag: int) -> None:
    """They are as long as those of the barrier."""
    others = [r for r in range(size) if r != rank]
    lengths = {1, size + 2}
    sent = [dist.isend(torch.full((n,), 7 * rank), other, tag=tag) for other in others for n in lengths]
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    for other in others:
        for n in lengths:
            x = torch.zeros(n, dtype=torch.int64)
            dist.recv(x, other, tag=tag)
            assert x.tolist() == [7 * other] * n
    for work in sent:
        work.wait()

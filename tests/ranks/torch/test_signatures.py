"""mpicoll.torch has torch.distributed's names, with its parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch.distributed

import mpicoll.torch as dist
from mpicoll.errors import ArgumentError
from tests.ranks.torch import cases

EXPORTED = dist.__all__
FUNCTIONS = [name for name in EXPORTED if inspect.isfunction(inspect.unwrap(getattr(dist, name, None)))]
SINCE = {("init_process_group", "device_id"), ("new_group", "device_id"), ("send_object_list", "use_batch")}
SINCE |= {("recv_object_list", "use_batch"), ("new_group", "sort_ranks"), ("barrier", "timeout")}
SINCE |= {("init_process_group", "enable_reconfigure")}
SINCE |= {(name, "weights_only") for name in EXPORTED if "object" in name}
"""Parameters that some supported versions of torch do not have."""

NOT_TORCHS = {"empty", "share_"}
"""Names that torch.distributed does not have."""

NEW_NAMES = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
"""Names that torch has since 2.13, and the older names."""

OURS = ("algorithm", inspect.Parameter.KEYWORD_ONLY, None)
"""The parameter that every collective of mpicoll's has, and torch's have not."""


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """(name, kind, default) of each public parameter."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found if not p.name.startswith("_") and p.name != "self"]


def test_exports() -> None:
    assert dir(dist) == dist.__all__
    assert dist.__all__ == sorted(EXPORTED)
    assert all(hasattr(dist, name) for name in EXPORTED)
    assert all(hasattr(torch.distributed, name) for name in EXPORTED if name not in NOT_TORCHS | NEW_NAMES.keys())
    assert dist.ReduceOp is torch.distributed.ReduceOp
    assert all(getattr(dist, new) is getattr(dist, old) for new, old in NEW_NAMES.items())


@pytest.mark.parametrize("name", [*FUNCTIONS, "P2POp"])
def test_parameters_are_torchs(name: str) -> None:
    ours = parameters(getattr(dist, name))
    if not hasattr(torch.distributed, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    theirs = parameters(torch.distributed.P2POp.__init__ if name == "P2POp" else getattr(torch.distributed, name))
    known = {parameter for parameter, _, _ in theirs}
    assert [p for p in ours if p != OURS and (p[0] in known or (name, p[0]) not in SINCE)] == theirs


@pytest.mark.parametrize("name", [name for name in EXPORTED if "object" in name])
def test_objects_are_pickled(name: str) -> None:
    arguments = ([None], None) if name == "all_gather_object" else ([None],)
    with pytest.raises(ArgumentError, match=f"{name}: weights_only: expected False"):
        getattr(dist, name)(*arguments, weights_only=True)


def test_every_collective_takes_an_algorithm() -> None:
    found = {name for name in FUNCTIONS if OURS in parameters(getattr(dist, name))}
    assert found == {*cases.FUNCTIONS, *NEW_NAMES, "barrier"}


def test_handles_have_torchs_methods() -> None:
    """Handles have the methods of torch's Work that a CPU program calls, with compatible signatures."""
    x = torch.ones(1)
    collective = dist.all_reduce(x, async_op=True)
    message = dist.isend(x, dist.get_rank())
    receive = dist.irecv(torch.ones(1), dist.get_rank())
    for work in (collective, message, receive):
        assert isinstance(work, dist.Work)
        assert work.wait() is True
        for method in ("is_completed", "is_success", "exception", "synchronize", "wait"):
            assert callable(getattr(torch.distributed.Work, method))
            getattr(work, method)()
        assert list(inspect.signature(work.wait).parameters) == ["timeout"]
    for method in ("get_future", "result"):
        assert callable(getattr(torch.distributed.Work, method))
        getattr(collective, method)()


def test_groups_have_torchs_methods() -> None:
    world = dist.group.WORLD
    assert isinstance(world, dist.ProcessGroup)
    assert (world.rank(), world.size(), world.name()) == (dist.get_rank(), dist.get_world_size(), "mpicoll")
    for method in ("rank", "size", "name", "group_name"):
        assert hasattr(torch.distributed.ProcessGroup, method)
        assert hasattr(world, method)
    assert dist.GroupMember.NON_GROUP_MEMBER == torch.distributed.GroupMember.NON_GROUP_MEMBER


def test_an_algorithm_is_given_by_its_name_alone() -> None:
    """In a repeated call, too."""
    calls: Any = dist
    x = torch.zeros(3)
    for _ in range(2):
        dist.all_reduce(x, algorithm="exchange")
        with pytest.raises(TypeError, match="positional arguments"):
            calls.all_reduce(x, dist.ReduceOp.SUM, None, False, "exchange")

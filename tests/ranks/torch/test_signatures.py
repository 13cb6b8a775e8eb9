"""mpicoll.torch has torch.distributed's names, with its parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch.distributed

import mpicoll.torch as dist
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


def test_every_collective_takes_an_algorithm() -> None:
    found = {name for name in FUNCTIONS if OURS in parameters(getattr(dist, name))}
    assert found == {*cases.FUNCTIONS, *NEW_NAMES, "barrier"}


def test_works_and_groups_have_torchs_methods() -> None:
    """Those that a CPU program calls."""
    receive = dist.irecv(torch.ones(1), dist.get_rank())
    for work in (dist.all_reduce(torch.ones(1), async_op=True), dist.isend(torch.ones(1), dist.get_rank()), receive):
        assert isinstance(work, dist.Work)
        for method in ("is_completed", "is_success", "exception", "synchronize", "wait"):
            assert callable(getattr(torch.distributed.Work, method))
            getattr(work, method)()
        assert list(inspect.signature(work.wait).parameters) == ["timeout"]
    world = dist.group.WORLD
    assert isinstance(world, dist.ProcessGroup)
    assert (world.rank(), world.size(), world.name()) == (dist.get_rank(), dist.get_world_size(), "mpicoll")
    for name in ("rank", "size", "name", "group_name"):
        assert hasattr(torch.distributed.ProcessGroup, name)
        assert hasattr(world, name)
    assert dist.GroupMember.NON_GROUP_MEMBER == torch.distributed.GroupMember.NON_GROUP_MEMBER


def test_an_algorithm_is_given_by_its_name_alone() -> None:
    """In a repeated call, too."""
    calls: Any = dist
    x = torch.zeros(3)
    for _ in range(2):
        dist.all_reduce(x, algorithm="exchange")
        with pytest.raises(TypeError, match="positional arguments"):
            calls.all_reduce(x, dist.ReduceOp.SUM, None, False, "exchange")

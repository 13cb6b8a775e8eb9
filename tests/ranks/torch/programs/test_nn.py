"""torch.distributed.nn on the registered backend and on gloo, against mpicoll.torch.nn: values and gradients."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch.distributed.nn import functional as torchs

from mpicoll.torch import nn
from tests.ranks.torch.cases import Group
from tests.ranks.torch.test_nn import CASES, Case, inputs, weights

# torch's gradients of other reductions are not those of one process, and of _all_gather_base it has none but on NCCL.
NAMES = [name for name in CASES if ", avg" not in name and ", premul" not in name and name != "_all_gather_base"]

NOT_ON_GLOO = ["all_to_all"]  # torch makes scatters of it there, which take equal blocks only


def results(module: ModuleType, case: Case, g: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's output and the gradient of its input. Outputs that torch leaves undefined count for nothing."""
    assert g.rank is not None
    x = inputs(g.size)[g.rank].requires_grad_()
    y = case.ranks(module, g, x)
    counts = case.root is None or g.rank == range(g.size)[case.root]
    y = y * weights(g.size)[g.rank][: len(y)] * counts
    y.sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("backend", ["mpicoll", "gloo"])
def test_torchs_functions_find_the_same(backend: str, rank: int, size: int) -> None:
    ranks = list(range(size))
    ours = Group("ours", dist.new_group(ranks), ranks, rank)
    theirs = Group(backend, dist.new_group(ranks, backend=backend), ranks, rank)
    for name in NAMES if backend == "mpicoll" else [name for name in NAMES if name not in NOT_ON_GLOO]:
        for found, expected in zip(results(torchs, CASES[name], theirs), results(nn, CASES[name], ours), strict=True):
            torch.testing.assert_close(found, expected, msg=partial("{}: {}".format, name))

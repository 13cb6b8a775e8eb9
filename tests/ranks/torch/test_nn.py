"""Differentiable collectives: values and gradients are those of one process; gradcheck over all ranks' inputs."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest
import torch
import torch.distributed.nn.functional

from mpicoll.errors import ArgumentError, DtypeError
from mpicoll.torch import nn
from tests.ranks.torch.api import dist
from tests.ranks.torch.cases import Group
from tests.ranks.torch.differentiable import CASES, Case, inputs, weights

NAMES = ["_all_gather_base", *nn.__all__]
GROUPS = ["world", "some", "backwards"]

by_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def of_name(groups: list[Group], name: str) -> Group:
    return next(g for g in groups if g.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_torchs(name: str) -> None:
    """Only the default of ``group`` differs: torch looks the default group up when its module is imported."""
    ours = inspect.signature(getattr(nn, name)).parameters.values()
    theirs = inspect.signature(getattr(torch.distributed.nn.functional, name)).parameters.values()
    assert [(p.name, p.kind) for p in ours] == [(p.name, p.kind) for p in theirs]
    assert [p.default for p in ours][:-1] == [p.default for p in theirs][:-1]


@pytest.mark.parametrize("name", GROUPS)
@by_case
def test_values_and_gradients(case: Case, name: str, groups: list[Group]) -> None:
    """First and second derivatives. Each rank weighs its output for its loss. One process computes the sum of all
    losses, and its gradients."""
    g = of_name(groups, name)
    if g.rank is None:
        return

    def losses(ys: list[torch.Tensor], of: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([((y * w[: len(y)]) ** 3).sum() for y, w in zip(ys, of, strict=True)]).sum()

    x, ws = inputs(g.size)[g.rank].requires_grad_(), weights(g.size)
    y = case.ranks(nn, g, x)
    if not len(y):  # it comes from nothing
        return
    (gradient,) = torch.autograd.grad(losses([y], [ws[g.rank]]), x, create_graph=True)
    gradient.square().sum().backward()
    xs = [each.requires_grad_() for each in inputs(g.size)]
    ys = case.alone(xs)
    of_all = losses(ys, ws) + 0 * torch.stack(xs).pow(3).sum()  # some functions leave some inputs out
    gradients = torch.autograd.grad(of_all, xs, create_graph=True)
    torch.stack([each.square().sum() for each in gradients]).sum().backward()
    torch.testing.assert_close(y, ys[g.rank])
    torch.testing.assert_close(gradient, gradients[g.rank])
    torch.testing.assert_close(x.grad, xs[g.rank].grad)


# -- what else torch's do ----------------------------------------------------------------------------------------------


def test_outputs_are_written_and_returned(rank: int, size: int) -> None:
    output = torch.zeros(size, 2)
    x = torch.full((1, 2), float(rank), requires_grad=True)
    found = nn._all_gather_base(output, x)
    assert found.data_ptr() == output.data_ptr()
    assert output.tolist() == [[r, r] for r in range(size)]
    assert found.requires_grad
    assert not output.requires_grad
    outs = [torch.zeros(1, 2) for _ in range(size)]
    assert nn.all_reduce(torch.arange(3)).tolist() == [0, size, 2 * size]  # in the default group
    there = nn.all_to_all(outs, [x] * size)
    assert [y.data_ptr() for y in there] == [y.data_ptr() for y in outs]
    assert [y.tolist() for y in outs] == [[[r, r]] for r in range(size)]


def test_an_output_that_is_changed_has_no_gradient() -> None:
    """torch raises an error of its own. The gradient would be wrong."""
    output, x = torch.zeros(2), torch.ones(2, requires_grad=True)
    y = nn.reduce_scatter(output, [x] * dist.get_world_size())
    loss = (y**2).sum()
    output.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("op", ["MAX", "MIN", "PRODUCT"])
def test_an_op_without_a_gradient(op: str, rank: int, size: int) -> None:
    """It raises where a gradient is wanted, and works elsewhere. (torch returns a wrong gradient.)"""
    how = getattr(dist.ReduceOp, op)
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    for call in (
        lambda: nn.all_reduce(x, how),
        lambda: nn.reduce(x, 0, how),
        lambda: nn.reduce_scatter(torch.zeros(2), [x] * size, how),
    ):
        with pytest.raises(ArgumentError, match="op: expected SUM, AVG or PREMUL_SUM, which have a gradient"):
            call()
    expected = {"MAX": float(size), "MIN": 1.0, "PRODUCT": float(torch.arange(1, size + 1).prod())}[op]
    assert nn.all_reduce(x.detach(), how).tolist() == [expected] * 2
    with torch.no_grad():
        assert nn.all_reduce(x, how).tolist() == [expected] * 2


def test_bad_arguments(rank: int, size: int, groups: list[Group]) -> None:
    x = torch.ones(2)
    calls: list[tuple[Any, str]] = [
        (lambda: nn.all_reduce(cast(Any, [1.0])), "all_reduce: tensor: expected a torch.Tensor"),
        (lambda: nn.broadcast(x, size), "broadcast: src: expected one of the group's ranks"),
        (lambda: nn.scatter(None, 0), f"scatter: tensors: expected a list of {size} tensors"),
        (lambda: nn.scatter([x] * (size + 1), 0), f"scatter: tensors: expected a list of {size} tensors"),
        (lambda: nn.reduce_scatter(x, cast(Any, [x, 1][:size] if size > 1 else [1])), "reduce_scatter: input_list"),
        (lambda: nn.all_to_all([x] * (size - 1), [x] * size), "all_to_all: output_tensor_list"),
        (lambda: nn._all_gather_base(torch.ones(size * 2 + 1), x), "output_tensor"),
        (lambda: nn.all_reduce(x, group="world"), "all_reduce: group: expected a group of mpicoll.torch"),  # type: ignore[arg-type]
    ]
    for call, message in calls:
        with pytest.raises(ArgumentError, match=message):
            call()
    with pytest.raises(DtypeError, match=r"all_to_all: output_tensor_list\[0\]: expected dtype torch.float32"):
        nn.all_to_all([x.double()] * size, [x] * size)
    some = of_name(groups, "some")
    if some.rank is None:
        with pytest.raises(ArgumentError, match="all_gather: group: expected a group that this rank is in"):
            nn.all_gather(x, some.handle)

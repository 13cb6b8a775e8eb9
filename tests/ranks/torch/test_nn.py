"""Differentiable collectives, mpicoll.torch's and torch's own: values and gradients are those of one process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
import torch.distributed.nn.functional

from mpicoll.errors import ArgumentError, DtypeError
from mpicoll.torch import nn
from tests.ranks.torch.api import dist, through_torch
from tests.ranks.torch.cases import Group, premul

Tensors = list[torch.Tensor]

LENGTH = 12
"""Elements of each rank's input, of which a function takes what it needs: 3 for each of 4 ranks."""


@dataclass(frozen=True)
class Case:
    """``ranks`` calls a function of the module on this rank's input, and ``alone`` computes all ranks' outputs from all
    ranks' inputs. Both give flat tensors. If ``root`` is not None, torch's own defines only this rank's output."""

    ranks: Callable[[Any, Group, torch.Tensor], torch.Tensor]
    alone: Callable[[Tensors], Tensors]
    root: int | None = None


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def blocks(x: torch.Tensor, n: int) -> Tensors:
    """A block of 1 x 2 for each of ``n`` ranks, none of them contiguous with the next."""
    return [x[2 * i : 2 * i + 2].view(1, 2) for i in range(n)]


def rows(sender: int, receiver: int) -> int:
    """How many rows the sender sends to the receiver: different numbers, some of them zero."""
    return (sender + 2 * receiver) % 3


def summed(xs: Tensors) -> torch.Tensor:
    return torch.stack(xs).sum(0)


def factor(rank: int) -> float:
    return 0.5 - rank


def _broadcast(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return nn.broadcast(x[:4].view(2, 2).t(), g.ranks[-1], g.handle).t().reshape(-1)


def _gather(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return flat(nn.gather(x[:2], g.ranks[-1], g.handle))


def _scatter(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return flat([nn.scatter(blocks(x, g.size), g.ranks[-1], g.handle)])


def _all_gather(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return flat(nn.all_gather(x[:2], g.handle))


def _all_gather_base(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return flat([nn._all_gather_base(x.new_empty(g.size, 2), x[:2].view(1, 2), g.handle)])


def _all_to_all(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    to = [rows(g.rank, r) for r in range(g.size)]
    outs = [x.new_empty(rows(r, g.rank)) for r in range(g.size)]
    return flat(nn.all_to_all(outs, list(x[: sum(to)].split(to)), g.handle))


def _all_to_all_single(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return flat([nn.all_to_all_single(x.new_empty(g.size, 2), x[: 2 * g.size].view(-1, 2), group=g.handle)])


def _with_splits(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    to = [rows(g.rank, r) for r in range(g.size)]
    of = [rows(r, g.rank) for r in range(g.size)]
    return nn.all_to_all_single(x.new_empty(sum(of)), x[: sum(to)], of, to, g.handle)


def _exchanged(xs: Tensors) -> Tensors:
    cut = [x[: sum(to)].split(to) for s, x in enumerate(xs) for to in [[rows(s, r) for r in range(len(xs))]]]
    return [flat([cut[s][r] for s in range(len(xs))]) for r in range(len(xs))]


def _at(root: int, ys: list[torch.Tensor]) -> Tensors:
    """The root's tensor, and zeros for the other ranks."""
    return [y if r == root else torch.zeros_like(y) for r, y in enumerate(ys)]


def _reductions(op: Any, combined: Callable[[Tensors], torch.Tensor]) -> dict[str, Case]:
    def op_of(g: Group) -> Any:
        return op if op is not None else premul(factor(g.rank or 0))

    return {
        "reduce": Case(
            lambda nn, g, x: nn.reduce(x[:3], g.ranks[-1], op_of(g), g.handle),
            lambda xs: _at(len(xs) - 1, [combined(xs)[:3]] * len(xs)),
            root=-1,
        ),
        "all_reduce": Case(
            lambda nn, g, x: nn.all_reduce(x[::2], op_of(g), g.handle), lambda xs: [combined(xs)[::2]] * len(xs)
        ),
        "reduce_scatter": Case(
            lambda nn, g, x: flat([nn.reduce_scatter(x.new_empty(1, 2), blocks(x, g.size), op_of(g), g.handle)]),
            lambda xs: [flat(blocks(combined(xs), len(xs))[r]) for r in range(len(xs))],
        ),
    }


_SUM, _AVG = torch.distributed.ReduceOp.SUM, torch.distributed.ReduceOp.AVG

CASES: dict[str, Case] = {
    **_reductions(_SUM, summed),
    **{f"{name}, avg": case for name, case in _reductions(_AVG, lambda xs: summed(xs) / len(xs)).items()},
    **{
        f"{name}, premul_sum": case
        for name, case in _reductions(None, lambda xs: summed([factor(r) * x for r, x in enumerate(xs)])).items()
    },
    "broadcast": Case(_broadcast, lambda xs: [xs[-1][:4]] * len(xs)),
    "gather": Case(
        _gather, lambda xs: _at(len(xs) - 1, [flat([x[:2] for x in xs])] * len(xs)), root=-1
    ),
    "scatter": Case(_scatter, lambda xs: [flat([b]) for b in blocks(xs[-1], len(xs))]),
    "all_gather": Case(_all_gather, lambda xs: [flat([x[:2] for x in xs])] * len(xs)),
    "_all_gather_base": Case(_all_gather_base, lambda xs: [flat([x[:2] for x in xs])] * len(xs)),
    "all_to_all": Case(_all_to_all, _exchanged),
    "all_to_all_single": Case(
        _all_to_all_single,
        lambda xs: [flat([x[2 * r : 2 * r + 2] for x in xs]) for r in range(len(xs))],
    ),
    "all_to_all_single, splits": Case(_with_splits, _exchanged),
}  # fmt: skip


def drawn(size: int, seed: int) -> Tensors:
    """A vector for each rank: its input, or what its outputs are multiplied with in its loss. These may be fewer."""
    g = torch.Generator().manual_seed(seed)
    return list(torch.randn(size, LENGTH, dtype=torch.float64, generator=g))


NAMES = ["_all_gather_base", *nn.__all__]
GROUPS = ["world", "some", "backwards"]

NOT_TORCHS = (", avg", ", premul_sum", "_all_gather_base")
"""torch's gradients of these are not those of one process. Nor are those of some in groups whose ranks have other
numbers than in the job: torch compares the one with the other."""


def of_name(groups: list[Group], name: str) -> Group:
    return next(g for g in groups if g.name == name)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_torchs(name: str) -> None:
    """Only the default of ``group`` differs: torch looks the default group up when its module is imported."""
    ours = inspect.signature(getattr(nn, name)).parameters.values()
    theirs = inspect.signature(getattr(torch.distributed.nn.functional, name)).parameters.values()
    assert [(p.name, p.kind) for p in ours] == [(p.name, p.kind) for p in theirs]
    assert [p.default for p in ours][:-1] == [p.default for p in theirs][:-1]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("function", CASES)
def test_values_and_gradients(function: str, name: str, groups: list[Group]) -> None:
    """First and second derivatives, of torch's functions the first. Each rank weighs its output for its loss. One
    process computes the sum of all losses, and its gradients."""
    g, case = of_name(groups, name), CASES[function]
    if g.rank is None or (through_torch() and (function.endswith(NOT_TORCHS) or name != "world")):
        return

    def losses(ys: list[torch.Tensor], of: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([((y * w[: len(y)]) ** 3).sum() for y, w in zip(ys, of, strict=True)]).sum()

    x, ws = drawn(g.size, 5)[g.rank].requires_grad_(), drawn(g.size, 6)
    if through_torch():
        is_defined = case.root is None or g.rank == range(g.size)[case.root]
        y = case.ranks(torch.distributed.nn.functional, g, x) * is_defined
    else:
        y = case.ranks(nn, g, x)
    if not len(y):  # it comes from nothing
        return
    (gradient,) = torch.autograd.grad(losses([y], [ws[g.rank]]), x, create_graph=True)
    xs = [each.requires_grad_() for each in drawn(g.size, 5)]
    ys = case.alone(xs)
    of_all = losses(ys, ws) + 0 * torch.stack(xs).pow(3).sum()  # some functions leave some inputs out
    gradients = torch.autograd.grad(of_all, xs, create_graph=True)
    torch.testing.assert_close(y, ys[g.rank])
    torch.testing.assert_close(gradient, gradients[g.rank])
    if through_torch():
        return
    gradient.square().sum().backward()
    torch.stack([each.square().sum() for each in gradients]).sum().backward()
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
        (lambda: nn.reduce_scatter(x, cast(Any, [*[x] * (size - 1), 1])), "reduce_scatter: input_list"),
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

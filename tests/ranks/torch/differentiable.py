"""What each differentiable collective does, as the ranks call it and as one process computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.ranks.torch.cases import Group, premul

Tensors = list[torch.Tensor]

LENGTH = 12
"""Elements of each rank's input, of which a function takes what it needs: 3 for each of 4 ranks."""


@dataclass(frozen=True)
class Case:
    """``ranks`` calls a function of the module on this rank's input, and ``alone`` computes all ranks' outputs from all
    ranks' inputs. Both give flat tensors. ``root`` says of ``alone``'s outputs that only this rank's is defined."""

    function: str
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
    assert g.rank is not None
    to = [rows(g.rank, r) for r in range(g.size)]
    outs = [x.new_empty(rows(r, g.rank)) for r in range(g.size)]
    return flat(nn.all_to_all(outs, list(x[: sum(to)].split(to)), g.handle))


def _all_to_all_single(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    return flat([nn.all_to_all_single(x.new_empty(g.size, 2), x[: 2 * g.size].view(-1, 2), group=g.handle)])


def _with_splits(nn: Any, g: Group, x: torch.Tensor) -> torch.Tensor:
    assert g.rank is not None
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
            "reduce",
            lambda nn, g, x: nn.reduce(x[:3], g.ranks[-1], op_of(g), g.handle),
            lambda xs: _at(len(xs) - 1, [combined(xs)[:3]] * len(xs)),
            root=-1,
        ),
        "all_reduce": Case(
            "all_reduce",
            lambda nn, g, x: nn.all_reduce(x[::2], op_of(g), g.handle),
            lambda xs: [combined(xs)[::2]] * len(xs),
        ),
        "reduce_scatter": Case(
            "reduce_scatter",
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
    "broadcast": Case("broadcast", _broadcast, lambda xs: [xs[-1][:4]] * len(xs)),
    "gather": Case(
        "gather", _gather, lambda xs: _at(len(xs) - 1, [flat([x[:2] for x in xs])] * len(xs)), root=-1
    ),
    "scatter": Case("scatter", _scatter, lambda xs: [flat([b]) for b in blocks(xs[-1], len(xs))]),
    "all_gather": Case("all_gather", _all_gather, lambda xs: [flat([x[:2] for x in xs])] * len(xs)),
    "_all_gather_base": Case("_all_gather_base", _all_gather_base, lambda xs: [flat([x[:2] for x in xs])] * len(xs)),
    "all_to_all": Case("all_to_all", _all_to_all, _exchanged),
    "all_to_all_single": Case(
        "all_to_all_single",
        _all_to_all_single,
        lambda xs: [flat([x[2 * r : 2 * r + 2] for x in xs]) for r in range(len(xs))],
    ),
    "all_to_all_single, splits": Case("all_to_all_single", _with_splits, _exchanged),
}  # fmt: skip


def inputs(size: int) -> Tensors:
    """All ranks' inputs, in float64."""
    g = torch.Generator().manual_seed(5)
    return list(torch.randn(size, LENGTH, dtype=torch.float64, generator=g))


def weights(size: int) -> Tensors:
    """What all ranks' outputs are multiplied with in their losses; more than there are outputs."""
    g = torch.Generator().manual_seed(6)
    return list(torch.randn(size, LENGTH, dtype=torch.float64, generator=g))

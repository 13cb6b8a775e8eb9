"""The programs that people bring along from torch.distributed, as they write them."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path

import metrics
import pytest
import sgd
import torch

import mpicoll.torch as dist
from tests.ranks.torch.programs.training import train

pytestmark = pytest.mark.first_mpi

EXAMPLES = Path(__file__).parents[3] / "examples"
OF_MPICOLL_TORCH = [p for p in sorted(EXAMPLES.glob("*.py")) if "\nimport mpicoll.torch as dist" in p.read_text()]
"""programs/test_examples.py runs the other examples, and jobs/test_elastic.py the one that loses ranks."""


def test_metrics(rank: int, size: int) -> None:
    predicted, target = torch.arange(12), torch.arange(12)
    predicted[: rank + 1] += 1
    found = metrics.accuracy(predicted, target)
    assert found == pytest.approx(1 - sum(range(1, size + 1)) / (12 * size), abs=1e-12)


def test_synchronous_sgd(rank: int, size: int) -> None:
    """The loss falls in every epoch, as it does on one process, and all ranks hold equal parameters, bit for bit."""
    model, losses = sgd.train()
    assert len(losses) == sgd.EPOCHS
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < losses[0] / 5
    parameters = torch.cat([p.detach().view(-1) for p in model.parameters()])
    everybodys = torch.zeros(size, len(parameters))
    dist.all_gather_into_tensor(everybodys.view(-1), parameters)
    assert (everybodys == parameters).all()
    x, y = sgd.data_set()
    batches = [*zip(x.split(sgd.BATCH), y.split(sgd.BATCH), strict=True)]
    alone = train(sgd.make_model(), batches * sgd.EPOCHS, lambda those: torch.optim.SGD(those, lr=0.05))
    torch.testing.assert_close(parameters, torch.cat([p.detach().view(-1) for p in alone.parameters()]))


@pytest.mark.processes
@pytest.mark.parametrize("path", OF_MPICOLL_TORCH, ids=lambda p: p.stem)
def test_examples_say_how_to_start_them_and_run(path: Path, rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What they print is in jobs/test_examples.py."""
    run = import_module(path.stem)
    assert f"mpicoll run -n 4 examples/{path.name}" in run.__doc__
    dist.destroy_process_group()
    run.main(*[None, (4, 33)] if path.stem == "compare_topologies" else [])
    assert not dist.is_initialized()
    lines = capsys.readouterr().out.splitlines()
    of_rank_0 = {"own_broadcast": 15, "compare_topologies": 6}
    if path.stem in of_rank_0:
        assert len(lines) == of_rank_0[path.stem] * (rank == 0)
    else:
        assert all(line.startswith(f"rank {rank}") for line in lines)

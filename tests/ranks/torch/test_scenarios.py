"""The programs that people bring along from torch.distributed, as they write them."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

import mpicoll.torch as dist

pytestmark = pytest.mark.first_mpi

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.append(str(EXAMPLES))
OF_MPICOLL_TORCH = [p for p in sorted(EXAMPLES.glob("*.py")) if "\nimport mpicoll.torch as dist" in p.read_text()]
"""programs/test_examples.py runs the other examples, and jobs/test_elastic.py the one that loses ranks."""


def example(name: str) -> Any:
    """What an example defines."""
    return import_module(name)


def everybodys(size: int) -> list[list[int]]:
    return [[1 + 2 * r, 2 + 2 * r] for r in range(size)]


def column_sums(ranks: list[int]) -> list[int]:
    return [sum(1 + 2 * r for r in ranks), sum(2 + 2 * r for r in ranks)]


@pytest.mark.mpi(min_size=2)
def test_receives_take_messages_in_the_order_in_which_they_were_started(rank: int) -> None:
    """The program may wait for them in any order."""
    if rank == 0:
        for value in (1.0, 2.0, 3.0):
            dist.send(torch.tensor([value]), 1)
    elif rank == 1:
        tensors = [torch.zeros(1) for _ in range(3)]
        requests = [dist.irecv(tensor, source) for tensor, source in zip(tensors, (0, None, 0), strict=True)]
        for request in reversed(requests):
            assert request is not None
            request.wait()
        assert [tensor.item() for tensor in tensors] == [1.0, 2.0, 3.0]


def test_only_local_rank_0_downloads(rank: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = [str(tmp_path_factory.mktemp("data")) if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    file = Path(str(folder[0])) / "data.txt"
    local_rank = dist.get_node_local_rank()
    if local_rank != 0:
        dist.barrier()
    downloads = 0
    if not file.exists():
        file.write_text("downloaded")
        downloads = 1
    if local_rank == 0:
        dist.barrier()
    assert file.read_text() == "downloaded"
    assert downloads == (1 if local_rank == 0 else 0)


# -- training ---------------------------------------------------------------------------------------------------------


def test_synchronous_sgd(rank: int, size: int) -> None:
    """The loss falls in every epoch, as it does on one process, and all ranks hold equal parameters, bit for bit."""
    sgd = example("sgd")
    model, losses = sgd.train()
    assert len(losses) == 10
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert losses[-1] < losses[0] / 5
    parameters = torch.cat([p.detach().view(-1) for p in model.parameters()])
    everybodys_ = torch.zeros(size * len(parameters))
    dist.all_gather_into_tensor(everybodys_, parameters)
    for other in everybodys_.view(size, -1):
        assert torch.equal(other, parameters)
    alone = sgd.make_model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    x, y = sgd.data_set()
    for _ in range(sgd.EPOCHS):
        for inputs, targets in zip(x.split(sgd.BATCH), y.split(sgd.BATCH), strict=True):
            optimizer.zero_grad()
            mse_loss(alone(inputs), targets).backward()
            optimizer.step()
    torch.testing.assert_close(parameters, torch.cat([p.detach().view(-1) for p in alone.parameters()]))


def test_metrics(rank: int, size: int) -> None:
    predicted, target = torch.arange(12), torch.arange(12)
    predicted[: rank + 1] += 1
    found = example("metrics").accuracy(predicted, target)
    assert found == pytest.approx(1 - sum(range(1, size + 1)) / (12 * size), abs=1e-12)


@pytest.mark.processes
@pytest.mark.parametrize("path", OF_MPICOLL_TORCH, ids=lambda p: p.stem)
def test_examples_say_how_to_start_them_and_run(
    path: Path, rank: int, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = example(path.stem)
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
    if path.stem == "own_reduce" and rank == 0:
        assert f"rank 0, tree: {column_sums(list(range(size)))}" in lines
    if path.stem == "own_all_reduce":
        assert lines[2] == f"rank {rank}, ring: {column_sums(list(range(size)))}"
    if path.stem == "own_gather":
        assert f"rank {rank}, all, tree: {everybodys(size)}" in lines

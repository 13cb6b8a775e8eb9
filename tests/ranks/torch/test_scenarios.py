"""The programs that people bring along from torch.distributed, as they write them."""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

from mpicoll.errors import ArgumentError
from tests.ranks.torch.api import dist, ours_alone, through_torch

pytestmark = pytest.mark.first_mpi

EXAMPLES = Path(__file__).parents[3] / "examples"
sys.path.append(str(EXAMPLES))
OF_MPICOLL_TORCH = [p for p in sorted(EXAMPLES.glob("*.py")) if "\nimport mpicoll.torch as dist" in p.read_text()]
"""programs/test_examples.py runs the other examples, and jobs/test_elastic.py the one that loses ranks."""


def example(name: str) -> Any:
    """What an example defines, with the API under test in the place of mpicoll.torch."""
    module: Any = import_module(name)
    if hasattr(module, "dist"):
        module.dist = dist
    return module


def mine(rank: int) -> torch.Tensor:
    return torch.arange(2, dtype=torch.int64) + 1 + 2 * rank


def everybodys(size: int) -> list[list[int]]:
    return [[1 + 2 * r, 2 + 2 * r] for r in range(size)]


def column_sums(ranks: list[int]) -> list[int]:
    return [sum(1 + 2 * r for r in ranks), sum(2 + 2 * r for r in ranks)]


# -- collectives ------------------------------------------------------------------------------------------------------


def test_broadcast(rank: int) -> None:
    tensor = mine(rank)
    dist.broadcast(tensor, src=0)
    assert tensor.tolist() == [1, 2]


@pytest.mark.parametrize("others", [None, []], ids=["none", "empty"])
def test_scatter(rank: int, size: int, others: list[torch.Tensor] | None) -> None:
    tensor = torch.empty(2)
    if rank == 0:
        dist.scatter(tensor, [torch.tensor([i, i], dtype=torch.float32) for i in range(size)], src=0)
    else:
        dist.scatter(tensor, others, src=0)
    assert tensor.tolist() == [rank, rank]


def test_scatter_with_the_list_on_the_wrong_side(rank: int, size: int) -> None:
    """The source passes none, the others do: every rank is told of its own mistake."""
    tensor = torch.full((2,), -1.0)
    wrong = None if rank == 0 else [torch.zeros(2)] * size
    said = (
        rf"a list of {size} tensors.*given None"
        if rank == 0
        else f"only the source, rank 0, passes a list; given a list of {size}"
    )
    if through_torch():  # which finds it first
        said = "must be specified on source rank" if rank == 0 else "must NOT be specified on non-source ranks"
    else:
        said = f"scatter: scatter_list: .*{said}"
    with pytest.raises(ValueError if through_torch() else ArgumentError, match=said):
        dist.scatter(tensor, wrong, src=0)
    assert tensor.tolist() == [-1, -1]


def test_gather(rank: int, size: int) -> None:
    tensor = mine(rank)
    if rank == 0:
        gather_list = [torch.empty(2, dtype=torch.int64) for _ in range(size)]
        dist.gather(tensor, gather_list, dst=0)
        assert [t.tolist() for t in gather_list] == everybodys(size)
    else:
        dist.gather(tensor, dst=0)
    assert tensor.tolist() == [1 + 2 * rank, 2 + 2 * rank]


def test_reduce_leaves_the_others_unchanged(rank: int, size: int) -> None:
    last = size - 1
    tensor = mine(rank)
    dist.reduce(tensor, dst=last, op=dist.ReduceOp.SUM)
    assert tensor.tolist() == (column_sums(list(range(size))) if rank == last else mine(rank).tolist())


def test_all_gather(rank: int, size: int) -> None:
    tensor_list = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(tensor_list, mine(rank))
    assert [t.tolist() for t in tensor_list] == everybodys(size)


def test_all_reduce(rank: int, size: int) -> None:
    tensor = mine(rank)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    assert tensor.tolist() == {1: [1, 2], 2: [4, 6], 3: [9, 12], 4: [16, 20]}.get(size, column_sums(list(range(size))))


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
def test_send_and_recv(rank: int) -> None:
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor=tensor, dst=1)
    elif rank == 1:
        assert dist.recv(tensor=tensor, src=0) == 0
    assert tensor.item() == (1 if rank < 2 else 0)


@pytest.mark.mpi(min_size=2)
def test_isend_and_irecv(rank: int) -> None:
    tensor = torch.zeros(1)
    if rank < 2:
        if rank == 0:
            tensor += 1
            request = dist.isend(tensor=tensor, dst=1)
        else:
            request = dist.irecv(tensor=tensor, src=0)
        assert request is not None
        request.wait()
    assert tensor.item() == (1 if rank < 2 else 0)


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


def test_batch_around_a_ring(rank: int, size: int) -> None:
    sent, received = torch.arange(2) + 2 * rank, torch.zeros(2, dtype=torch.int64)
    send = dist.P2POp(dist.isend, sent, (rank + 1) % size)
    receive = dist.P2POp(dist.irecv, received, (rank - 1 + size) % size)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()
    left = (rank - 1) % size
    assert received.tolist() == [2 * left, 2 * left + 1]


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["all", "some", "inner"])
def test_every_collective_on_a_group(rank: int, size: int, kind: str) -> None:
    """Collectives work in the group as they do in the world. A rank outside is warned and gets nothing."""
    some = list(range(size))[size > 1 :]
    ranks = {"all": list(range(size)), "some": some, "inner": some[-2:]}[kind]
    group = dist.new_group(ranks)
    first, p = ranks[0], len(ranks)
    tensor = mine(rank)
    if rank not in ranks:
        said = f"rank {rank} which does not belong to" if through_torch() else f"rank {rank} is not in the given group"
        with pytest.warns(UserWarning, match=said):
            dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == mine(rank).tolist()
        return
    me = dist.get_rank(group)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == column_sums(ranks)

    tensor = mine(rank)
    dist.reduce(tensor, dst=first, group=group)
    assert tensor.tolist() == (column_sums(ranks) if me == 0 else mine(rank).tolist())

    tensor = mine(rank)
    dist.broadcast(tensor, src=first, group=group)
    assert tensor.tolist() == mine(first).tolist()

    gathered = [torch.zeros(2, dtype=torch.int64) for _ in ranks]
    dist.all_gather(gathered, mine(rank), group=group)
    assert [t.tolist() for t in gathered] == [mine(r).tolist() for r in ranks]

    to_first = [torch.zeros(2, dtype=torch.int64) for _ in ranks] if me == 0 else None
    dist.gather(mine(rank), to_first, dst=first, group=group)
    assert to_first is None or [t.tolist() for t in to_first] == [mine(r).tolist() for r in ranks]

    tensor = torch.zeros(2)
    dist.scatter(tensor, [torch.full((2,), float(i)) for i in range(p)] if me == 0 else None, src=first, group=group)
    assert tensor.tolist() == [me, me]

    out = torch.zeros(2, dtype=torch.int64)
    dist.reduce_scatter(out, [mine(rank) * (i + 1) for i in range(p)], group=group)
    assert out.tolist() == [s * (me + 1) for s in column_sums(ranks)]

    outs = [torch.zeros(1) for _ in ranks]
    dist.all_to_all(outs, [torch.tensor([10.0 * me + i]) for i in range(p)], group=group)
    assert [t.item() for t in outs] == [10 * i + me for i in range(p)]
    dist.barrier(group)
    dist.destroy_process_group(group)


# -- objects ----------------------------------------------------------------------------------------------------------


def test_numbers_and_strings(rank: int, size: int) -> None:
    for make in (lambda r: r * 1.5, lambda r: "x" * r):
        found: list[Any] = [None] * size
        dist.all_gather_object(found, make(rank))
        assert found == [make(r) for r in range(size)]
    text = ["of any length" if rank == 0 else None]
    dist.broadcast_object_list(text, src=0)
    assert text == ["of any length"]


def test_nested_objects_with_tensors(rank: int, size: int) -> None:
    """An object goes through all four collectives of objects."""
    given = {"rank": rank, "state": {"weights": mine(rank), "steps": [rank] * rank}}
    found: list[Any] = [None] * size
    dist.all_gather_object(found, given)
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(given, gathered, dst=0)
    told = gathered if gathered is not None else [None] * size
    dist.broadcast_object_list(told, src=0)
    back: list[Any] = [None]
    dist.scatter_object_list(back, gathered, src=0)
    for r, objects in enumerate(zip(found, told, strict=True)):
        for x in objects:
            assert x["rank"] == r
            assert x["state"]["steps"] == [r] * r
            assert torch.equal(x["state"]["weights"], mine(r))
    assert torch.equal(back[0]["state"]["weights"], mine(rank))


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


def test_average_gradients_is_the_gradient_of_the_whole_batch(rank: int, size: int) -> None:
    sgd = example("sgd")
    x, y = (part.double() for part in sgd.data_set())
    model = sgd.make_model().double()
    alone = copy.deepcopy(model)
    mse_loss(model(sgd.my_part(x)), sgd.my_part(y)).backward()
    sgd.average_gradients(model)
    mse_loss(alone(x), y).backward()
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-12, atol=1e-14)


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


# -- one's own --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one to all", "binary tree", "binomial tree", "ring"])
def test_own_broadcast(rank: int, name: str) -> None:
    for shape in ((2,), (33, 65), (1,)):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(rank))
        expected = x.clone()
        example("own_broadcast").BROADCASTS[name](x)
        dist.broadcast(expected, 0)
        assert torch.equal(x, expected)


@pytest.mark.parametrize("name", ["all to one", "tree"])
def test_own_reduce(rank: int, name: str) -> None:
    for n in (2, 1000):
        x = torch.arange(n) * (rank + 1)
        expected = x.clone()
        example("own_reduce").REDUCTIONS[name](x)
        dist.reduce(expected, 0)
        assert torch.equal(x, expected)


@pytest.mark.parametrize("name", ["naive", "tree", "ring", "butterfly"])
def test_own_all_reduce(rank: int, name: str) -> None:
    for n in (1, 2, 1000):
        x = torch.arange(n) * (rank + 1)
        expected = x.clone()
        example("own_all_reduce").ALL_REDUCES[name](x)
        dist.all_reduce(expected)
        assert torch.equal(x, expected)


@pytest.mark.parametrize("name", ["naive", "tree", "all, naive", "all, tree", "all, ring"])
def test_own_gather(rank: int, size: int, name: str) -> None:
    own = example("own_gather")
    expected = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(expected, torch.full((3,), rank + 1.0))
    rows = torch.zeros(size, 3)
    rows[rank] = rank + 1
    (own.TO_RANK_0 | own.TO_ALL)[name](rows)
    if rank == 0 or name in own.TO_ALL:
        assert torch.equal(rows, torch.stack(expected))


@pytest.mark.processes
@ours_alone("the programs make their default group by mpicoll.torch")
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

"""A program that sends and receives within DDP's backward pass, which waits for its all-reduces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import run, script

pytestmark = pytest.mark.first_mpi

PROGRAM = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpicoll")
    rank = dist.get_rank()
    torch.manual_seed(0)
    first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    # A bucket for each layer: the last layer's all-reduce starts before the first layer's gradients are computed.
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(first, last), bucket_cap_mb=1e-6)
    message = torch.full((3,), float(rank))


    def at_its_gradient(layer, do):
        def hook(layer, given, out):
            def then(gradient):
                do()

            out.register_hook(then)

        layer.register_forward_hook(hook)


    if rank == 0:
        at_its_gradient(first, lambda: dist.send(message, 1))
    else:
        at_its_gradient(last, lambda: dist.recv(message, 0))
    for _ in range(3):
        message.fill_(rank)
        model(torch.full((4, 8), 1.0 + rank)).sum().backward()
        assert message.tolist() == [0.0] * 3
    gradients = [torch.empty_like(first.weight) for _ in range(2)]
    dist.all_gather(gradients, first.weight.grad)
    assert torch.equal(*gradients)
    assert first.weight.grad.any()
    print("trained", flush=True)
    dist.destroy_process_group()
"""


def test_a_message_that_comes_after_an_all_reduce_and_is_received_before_it(tmp_path: Path) -> None:
    result = run(2, script(tmp_path, PROGRAM), env={"MPICOLL_DDP_OVERLAP": "0"})
    assert (result.code, result.output.count("trained")) == (0, 2), result.output

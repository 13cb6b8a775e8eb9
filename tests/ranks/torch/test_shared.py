"""Memory that ranks share is made by all of them together; a call that is only handed in must not wait for that."""

from __future__ import annotations

import pytest
import torch

import mpicoll.torch as dist


@pytest.mark.mpi(min_size=2)
def test_what_follows_an_asynchronous_call_does_not_wait_for_it(rank: int, size: int) -> None:
    group = dist.new_group()  # with no memory shared yet
    x, word = torch.full((1 << 18,), float(rank)), torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True, algorithm="ring")
        for other in range(1, size):
            dist.send(word + other, other)
        assert work is not None
        work.wait()
    else:
        dist.recv(word, 0)
        assert word.item() == rank
        dist.all_reduce(x, group=group, algorithm="ring")
    assert (x == size * (size - 1) / 2).all()
    dist.destroy_process_group(group)

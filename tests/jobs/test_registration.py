"""``init_process_group("mpicoll")`` in programs that import torch alone: by the entry point, started in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, Done, run, script

pytestmark = NEEDS_TORCH

BEGIN = """
import os, sys
import torch
import torch.distributed as dist
"""
# Said once by each rank whose collectives are right.
WORKS = """
x = torch.ones(1)
dist.all_reduce(x)
sys.stdout.write(f"{dist.get_backend()} {dist.get_rank()} {dist.get_world_size()} {x.item()}\\n")  # in one piece
dist.destroy_process_group()
"""


def made(folder: Path, *backends: str, before: str = "", then: str = "", env: dict[str, str] | None = None) -> Done:
    """What two ranks say that make one default group after another."""
    groups = [f"\ndist.init_process_group({backend!r})\n{then}{WORKS}" for backend in backends]
    return run(2, script(folder, before + BEGIN + "".join(groups)), env=env)


def works(result: Done, *backends: str) -> None:
    said = [f"{backend} {rank} 2 2.0" for backend in backends for rank in range(2)]
    assert sorted(line for line in result.good().output.splitlines() if line.endswith(" 2 2.0")) == sorted(said)


def test_under_a_launcher(tmp_path: Path) -> None:
    """Nobody says rank, size or address: MPI does. One group is made after another."""
    backends = ["gloo", "mpicoll", "cpu:mpicoll,cuda:mpicoll", "gloo"]
    works(made(tmp_path, *backends), *backends)


def test_a_backend_for_each_device(tmp_path: Path) -> None:
    """Where torch takes a backend in Python; elsewhere it is refused."""
    from mpicoll.torch.private import BACKENDS_IN_PYTHON

    backend = "cpu:gloo,cuda:mpicoll"
    result = made(tmp_path, backend)
    if BACKENDS_IN_PYTHON:
        works(result, backend)
    else:
        result.bad(f"LaunchError: init_process_group: backend '{backend}' was given, but before torch 2.14")


@pytest.mark.parametrize("said", ["WORLD_SIZE=5", "RANK=7"])
def test_environment_that_contradicts_mpi(said: str, tmp_path: Path) -> None:
    """The variable is set as the program runs, as by a job script's export."""
    name, value = said.split("=")
    program = f"{BEGIN}\nos.environ['{name}'] = '{value}'\ndist.init_process_group('mpicoll', 'mpi://')\n{WORKS}"
    run(2, script(tmp_path, program)).bad(f"LaunchError: init_process_group: {said} was given, but MPI says")


DDP = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2), bucket_cap_mb=0.00001, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((3, 4), 1.0 + dist.get_rank())).square().sum().backward()
    optimizer.step()
"""


def test_debug_detail(tmp_path: Path) -> None:
    """Torch says more, and checks more of DDP."""
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "INFO"}
    works(made(tmp_path, "mpicoll", then=DDP, env=env), "mpicoll")


def test_without_thread_support(tmp_path: Path) -> None:
    """MPI for one thread: asynchronous collectives complete before the call returns, and DDP trains."""
    complete = "\nassert dist.all_reduce(torch.ones(100_000), async_op=True).is_completed()\n"
    before = "import mpi4py\nmpi4py.rc.thread_level = 'funneled'\n"
    works(made(tmp_path, "mpicoll", before=before, then=DDP + complete), "mpicoll")


PENDING = f"""{BEGIN}
dist.init_process_group('mpicoll')
x = torch.ones(100_000)
for _ in range(9):
    last = dist.all_reduce(x, async_op=True).get_future()
last.then(lambda f: sys.stdout.write(f'the last: {{f.value()[0][0].item()}}\\n'))
"""


@pytest.mark.usefixtures("usual_end")
def test_end_without_destroy(tmp_path: Path) -> None:
    """What is pending is completed, though nobody waits for it."""
    assert run(2, script(tmp_path, PENDING)).good().output.count("the last: 512.0") == 2


def test_threads_that_are_ranks_have_a_default_group_of_their_own(tmp_path: Path) -> None:
    """Beside that of the process, on which the kernel knows a call like theirs."""
    program = """
        import torch, mpicoll, mpicoll.torch as dist

        dist.init_process_group()
        x = torch.ones(3)
        for _ in range(2):
            dist.all_reduce(x)

        def rank(comm):
            dist.init_process_group()
            x = torch.ones(3)
            dist.all_reduce(x)
            return x.tolist()

        with mpicoll.threads(3) as ranks:
            assert ranks.run(rank) == [[3.0] * 3] * 3
        dist.all_reduce(x)
        assert x.tolist() == [8.0] * 3
    """
    run(2, script(tmp_path, program)).good()

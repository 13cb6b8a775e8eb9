"""``init_process_group("mpicoll")`` in programs that import torch alone: by the entry point, started in every way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, run, script

pytestmark = NEEDS_TORCH

BEGIN = """
import sys
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


def test_under_a_launcher(tmp_path: Path) -> None:
    """Nobody says rank, size or address: MPI does. One group is made after another."""
    backends = ["gloo", "mpicoll", "cpu:mpicoll,cuda:mpicoll"]
    starts = "".join(f"\ndist.init_process_group('{backend}')\n{WORKS}" for backend in backends)
    program = f"{BEGIN}{starts}\ndist.init_process_group('gloo', 'mpi://')\n{WORKS}"
    result = run(2, script(tmp_path, program)).good()
    for backend in [*backends, "gloo"]:
        assert sorted(re.findall(rf"^{backend} (\d) 2 2\.0", result.output, re.MULTILINE)) in (
            ["0", "1"],
            ["0", "0", "1", "1"],
        )


def test_a_backend_for_each_device(tmp_path: Path) -> None:
    """Where torch takes a backend in Python; elsewhere it is refused."""
    from mpicoll.torch.private import BACKENDS_IN_PYTHON

    backend = "cpu:gloo,cuda:mpicoll"
    result = run(2, script(tmp_path, f"{BEGIN}\ndist.init_process_group('{backend}')\n{WORKS}"))
    if BACKENDS_IN_PYTHON:
        assert result.code == 0, result.output
        assert sorted(re.findall(rf"{backend} (\d) 2 2\.0", result.output)) == ["0", "1"]
    else:
        assert result.code != 0
        assert f"LaunchError: init_process_group: backend '{backend}' was given, but before torch 2.14" in result.output


@pytest.mark.parametrize("said", ["WORLD_SIZE=5", "RANK=7"])
def test_environment_that_contradicts_mpi(said: str, tmp_path: Path) -> None:
    """The variable is set as the program runs, as by a job script's export."""
    name, value = said.split("=")
    begin = f"{BEGIN}\nimport os\nos.environ['{name}'] = '{value}'\n"
    run(2, script(tmp_path, f"{begin}\ndist.init_process_group('mpicoll', 'mpi://')\n{WORKS}")).bad(
        f"LaunchError: init_process_group: {said} was given, but MPI says"
    )


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
    text = f"{BEGIN}\ndist.init_process_group('mpicoll')\n{DDP}\n{WORKS}"
    run(2, script(tmp_path, text), env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "INFO"}).good(
        "mpicoll 0 2 2.0", "mpicoll 1 2 2.0"
    )


def test_without_thread_support(tmp_path: Path) -> None:
    """MPI for one thread: asynchronous collectives complete at once, which is said once, and DDP trains."""
    funneled = "import mpi4py\nmpi4py.rc.thread_level = 'funneled'\n"
    result = run(2, script(tmp_path, f"{funneled}{BEGIN}\ndist.init_process_group('mpicoll')\n{DDP}\n{WORKS}")).good()
    said = re.findall(r"script.py:\d+: UserWarning: .*without MPI_THREAD_MULTIPLE", result.output)  # the program's line
    assert len(said) == 2, result.output
    assert "mpicoll 0 2 2.0" in result.output


@pytest.mark.usefixtures("usual_end")
def test_end_without_destroy(tmp_path: Path) -> None:
    """What is pending is completed, though nobody waits for it."""
    program = (
        BEGIN
        + """
dist.init_process_group('mpicoll')
x = torch.ones(100_000)
for _ in range(9):
    last = dist.all_reduce(x, async_op=True).get_future()
last.then(lambda f: sys.stdout.write(f'the last: {f.value()[0][0].item()}\\n'))
"""
    )
    result = run(2, script(tmp_path, program)).good()
    assert result.output.count("the last: 512.0") == 2

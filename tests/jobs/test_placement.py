"""What a rank is told of its place, and what it says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpicoll.launch import placement
from tests.jobs.jobs import python, run, script


def test_variables_of_torchrun(tmp_path: Path) -> None:
    """They are the launcher's, whatever was inherited."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    program = script(tmp_path, f"import os, sys; sys.stdout.write(str([os.environ[n] for n in {names}]) + '\\n')")
    result = run(3, program, env={"RANK": "7", "LOCAL_RANK": "7"})
    assert result.code == 0, result.output
    assert sorted(re.findall(r"\[.*\]", result.output)) == [f"['{rank}', '3', '{rank}']" for rank in range(3)]


def test_the_report() -> None:
    result = run(2, "-m", "mpicoll.launch.placement")
    assert result.code == 0, result.output
    assert re.search(r"^2 ranks on 1 node, (Open MPI|MPICH|Intel MPI) \d", result.output, re.MULTILINE), result.output
    assert re.search(r"^\S+: ranks 0-1, bound to cores [\d,-]+ \| [\d,-]+$", result.output, re.MULTILINE), result.output


def test_ranks_that_do_not_meet() -> None:
    """As srun without --mpi starts them."""
    step = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    result = python("-m", "mpicoll.rank", "-m", "mpicoll.launch.placement", env=step)
    assert result.code != 0
    assert "alone in its MPI world although it was started as one of 4" in result.output


def test_the_numa_nodes_of_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a machine with four GPUs, two on each socket."""
    for i in range(4):
        (tmp_path / f"gpus/0000:{i}A:00.0").mkdir(parents=True)
        (tmp_path / f"bus/0000:{i}a:00.0").mkdir(parents=True)
        (tmp_path / f"bus/0000:{i}a:00.0/numa_node").write_text(f"{i // 2}\n")
    monkeypatch.setattr(placement, "_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(placement, "_BUS", tmp_path / "bus")
    assert [placement.gpu_numa(None, rank) for rank in range(5)] == [0, 0, 1, 1, 0]
    assert placement.gpu_numa("2,1", 0) == 1
    assert [placement.gpu_numa(visible, 0) for visible in ("", "9", "GPU-uuid")] == [None] * 3
    seats = {
        rank: placement._Seat("node1", {16 * rank}, {rank % 2}, "0,1,2,3", placement.gpu_numa(None, rank))
        for rank in range(4)
    }
    first, far = placement.lines(seats)
    assert first.endswith(", GPUs 0,1,2,3 | 0,1,2,3 | 0,1,2,3 | 0,1,2,3, NUMA nodes of their GPUs 0 | 0 | 1 | 1")
    assert far.startswith("ranks 1-2: on other NUMA nodes than the GPUs")

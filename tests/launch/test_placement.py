"""What a rank is told of its place, and what it says of it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launch.jobs import python, run, script


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

"""Job scripts on this node, without Slurm: what they need not be told, and what ends them before any rank starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.jobs.jobs import AS_ROOT, ON_LINUX, REPOSITORY, Done, done

pytestmark = pytest.mark.last_mpi

ALLOCATED = {
    "SLURM_JOB_NAME": "job", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NUM_NODES": "1",
    "SLURM_JOB_NODELIST": "node1",
}  # fmt: skip


def job(name: str, results: Path, env: dict[str, str]) -> Done:
    needed = {"SLURM_JOB_ID": "1", "MPICOLL_SLURM": str(REPOSITORY / "slurm"), "RESULTS": str(results)}
    here = {"MPICOLL_ENV": sys.prefix, "LAUNCHER": "mpirun", "DOCTOR": "no", "PROGRAM": "-c print('a_rank')"}
    return done("bash", str(REPOSITORY / f"slurm/{name}.sbatch"), env={**needed, **AS_ROOT, **here, **env})


def test_what_a_job_need_not_say(tmp_path: Path) -> None:
    """salloc sets fewer variables than sbatch."""
    assert job("single_node", tmp_path, {"BIND": "numa"}).good().output.splitlines().count("a_rank") == 1


@ON_LINUX
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}, "cannot load MPI: expected mpi4py, and an MPI library, in"),
        ({"MPICOLL_ENV": "/nowhere"}, "MPICOLL_ENV: expected a virtual environment; given /nowhere"),
        ({"MPICOLL_MODULES": "nowhere"}, "MPICOLL_MODULES: module load nowhere failed"),
        ({"LAUNCHER": "srun-nothing", "DOCTOR": "yes"}, "or mpirun; given srun-nothing"),
        ({"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": ""}, "2 GPUs a node were granted, but torch cannot use"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said(env: dict[str, str], said: str, tmp_path: Path) -> None:
    result = job("multi_node", tmp_path, ALLOCATED | env).bad(said)
    assert "a_rank" not in result.output

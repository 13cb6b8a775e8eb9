"""What goes wrong ends the job, soon and as FAILED, and the log says what it was and on which rank."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from tests.slurm.jobs import PROGRAMS, Job

SECONDS = 30
FAILS = f"{PROGRAMS}/fails.py"


def check_failed(job: Job) -> None:
    assert job.state == "FAILED", job.log
    assert "went on" not in job.log, job.log
    since = re.search(r"fails at (\d+\.\d+)", job.log)
    assert since, job.log
    assert datetime.fromisoformat(job["EndTime"]).timestamp() - float(since[1]) <= SECONDS, job.log


KILLED = r"(rank|task) 1\b.*(Killed|signal 9)"


@pytest.mark.job("multi_node", PROGRAM=f"{FAILS} killed", LAUNCHER="mpirun")
def test_a_rank_that_is_killed_under_mpirun(job: Job) -> None:
    check_failed(job)
    assert re.search(KILLED, job.log), job.log


@pytest.mark.job("multi_node", PROGRAM=f"{FAILS} killed", LAUNCHER="srun-{pmi}")
def test_a_rank_that_is_killed_under_srun(job: Job) -> None:
    check_failed(job)
    assert re.search(KILLED, job.log), job.log


@pytest.mark.job("multi_node", PROGRAM=f"{FAILS} raises", LAUNCHER="mpirun")
def test_a_rank_that_raises_under_mpirun(job: Job) -> None:
    check_failed(job)
    assert "ValueError: of rank 1" in job.log, job.log


@pytest.mark.job("multi_node", PROGRAM=f"{FAILS} raises", LAUNCHER="srun-{pmi}")
def test_a_rank_that_raises_under_srun(job: Job) -> None:
    check_failed(job)
    assert "ValueError: of rank 1" in job.log, job.log


@pytest.mark.job("multi_node", PROGRAM=f"{PROGRAMS}/bare.py", LAUNCHER="srun-{wrong_pmi}")
def test_the_wrong_pmi(job: Job) -> None:
    """Each rank would be alone in a world of its own, and a program that knows nothing of mpicoll would go on."""
    assert job.state == "FAILED", job.log
    assert "alone in its MPI world although it was started as one of 4" in job.log, job.log
    assert "--mpi" in job.log
    assert "sum of ones" not in job.log

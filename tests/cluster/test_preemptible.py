"""slurm/preemptible.sbatch: a job that is stopped goes to the queue again, and on where it was; any other ends."""

from __future__ import annotations

import re

import pytest

from tests.cluster.jobs import PROGRAMS, Job

BARE = f"{PROGRAMS}/bare.py"
STOPPED_ONCE = f"{PROGRAMS}/stopped_once.py"
FEW = "--ntasks-per-node=1"
"""A rank of this program imports 2.5 s of torch, and each job starts it twice."""
TRAINS = "2 ranks, steps 0 to"
REQUEUED = "stopped before its end: to the queue again"


def signal(job: Job, check: bool = True) -> None:
    """As --signal=B:USR1 does some time before the limit."""
    job.cluster.run("scancel", "--batch", "--signal=USR1", job.number, check=check)


def check_went_on(job: Job) -> None:
    """After one restart, from the step after which it was stopped."""
    job.wait()
    assert job.state == "COMPLETED", job.log
    assert job["Restarts"] == "1"
    assert REQUEUED in job.log
    stopped = re.search(r"stopped after step (\d+)", job.log)
    assert stopped, job.log
    first = int(stopped[1])
    assert re.findall(r"2 ranks, steps (\d+) to (\d+)", job.log) == [
        ("0", "1000000000"),
        (str(first), str(first + 100)),
    ]
    assert job.results("finished").read_text().startswith(f"step {first + 100}, ")


@pytest.mark.any_mpi
@pytest.mark.job("preemptible", "--hold", FEW, PROGRAM=STOPPED_ONCE, LAUNCHER="mpirun")
def test_a_signal_and_another_while_it_stops(released: Job) -> None:
    released.says(TRAINS)
    signal(released)
    signal(released, check=False)  # it may have stopped by now
    check_went_on(released)


@pytest.mark.last_mpi
@pytest.mark.job("preemptible", "--hold", FEW, PROGRAM=STOPPED_ONCE, LAUNCHER="srun-{pmi}")
def test_preempted_by_slurm(released: Job) -> None:
    released.says(TRAINS)
    urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
    released.cluster.run("sbatch", *urgent, cwd=released.folder, check=True)
    check_went_on(released)


@pytest.mark.any_mpi
@pytest.mark.job("preemptible", "--hold", FEW, PROGRAM=STOPPED_ONCE, MAX_RESTARTS="0")
def test_a_signal_before_the_program_starts(released: Job) -> None:
    """Does not end the job; what does is that there may be no restart."""
    released.says("results in ")
    signal(released)
    released.wait()
    assert released.state == "FAILED", released.log
    assert TRAINS not in released.log
    assert "MAX_RESTARTS: stopped before its end after 0 restarts" in released.log


@pytest.mark.any_mpi
@pytest.mark.job("preemptible", PROGRAM=BARE)
def test_a_program_that_never_says_that_it_finished(job: Job) -> None:
    assert job.state == "FAILED", job.log
    assert job["Restarts"] == "0"
    assert "PROGRAM: expected it to leave " in job.log, job.log
    assert REQUEUED not in job.log

"""What goes wrong ends the job, soon and as FAILED, and the log says what it was and on which rank."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import FIRST, MINUTES, PROGRAMS, Environment, Job, submit

SECONDS = 60 * MINUTES / 2
"""Well before Slurm would end it."""
FAILS = f"{PROGRAMS}/fails.py"
BARE = f"{PROGRAMS}/bare.py"
STUCK = f"{PROGRAMS}/stuck.py"
NODE_FIRST = f"{PROGRAMS}/node_first.py"


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=pytest.mark.job("multi_node", PROGRAM=f"{FAILS} {what}", LAUNCHER=launcher), id=what)
        for what, how, launcher in [
            ("SIGKILL", "by signal 9", "mpirun"),
            ("SIGKILL", "by signal 9", "srun-{pmi}"),
            ("SIGUSR2", "by signal 12", "srun-{pmi}"),
            ("raises", "by ValueError", "mpirun"),
        ]
    ],
)
def test_a_rank_that_fails(job: Job, how: str) -> None:
    """As FAILED and in time, and the first line on how a rank ended is about rank 1. SIGUSR2 is one that launchers pass
    on to the ranks."""
    assert job.state == "FAILED", job.log
    assert "went on" not in job.log, job.log
    since = re.search(r"fails at (\d+\.\d+)", job.log)
    assert since, job.log
    assert datetime.fromisoformat(job["EndTime"]).timestamp() - float(since[1]) <= SECONDS, job.log
    ended = re.findall(r"mpicoll: (rank .*) ended (.*)", job.log)
    assert ended[:1] == [("rank 1 on node1", how)], job.log
    assert ("ValueError: of rank 1" in job.log) == (how == "by ValueError"), job.log


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(name, marks=pytest.mark.job("multi_node", PROGRAM=BARE, LAUNCHER=name))
        for name in ("srun-{wrong_pmi}", "srun-none")
    ],
)
def test_the_wrong_pmi_or_none(launcher: str, job: Job, environment: Environment) -> None:
    """Each rank would be alone in a world of its own, and a program that knows nothing of mpicoll would go on."""
    assert job.state == "FAILED", job.log
    assert f"this MPI expects srun-{environment.pmi} or mpirun; given " in job.log, job.log
    assert "sum of ones" not in job.log
    for found in (job.log, job.results("doctor.txt").read_text()):
        assert re.search(r"^problem  MPI ", found, re.MULTILINE), found
    if launcher != "srun-none":
        return
    if environment.library.startswith("Open MPI v4"):
        assert 'The application appears to have been direct launched using "srun"' in job.log, job.log  # its own words
        return
    assert "alone in its MPI world although it was started as one of 4" in job.log, job.log
    assert "srun was given no --mpi, or one that this MPI does not speak" in job.log


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(name, marks=pytest.mark.job("multi_node", "--hold", PROGRAM=STUCK, LAUNCHER=name))
        for name in ("mpirun", "srun-{pmi}")
    ],
)
def test_a_job_that_is_stuck_says_what_it_does(launcher: str, released: Job, environment: Environment) -> None:
    """The signal reaches launchers and shells, too, and ends none of them. Which way it reaches the ranks depends on
    what has started them."""
    released.says("rank 1 sleeps")
    dump = environment.path / "bin/mpicoll", "doctor", "--dump", f"job:{released.number}"

    def all_are_there() -> bool:
        released.cluster.run(*dump, check=True)
        released.says(r"the last calls of each rank are in \S+/calls\b")
        stacks = [json.loads(released.results(f"calls/rank{rank}.json").read_text())["threads"] for rank in range(4)]
        sleeps, waits = ([f"stuck.py:{line}" in str(stack) for stack in stacks] for line in (12, 13))
        return (sleeps, waits) == ([False, True, False, False], [True, False, True, True])

    released.until(all_are_there, "rank 1 sleeps, and the others are in their barrier")
    assert released.state == "RUNNING", released.log
    released.cluster.run("scancel", released.number, check=True)
    released.wait()


@pytest.mark.any_mpi
@pytest.mark.job("multi_node", PROGRAM=NODE_FIRST)
def test_nodes_that_differ_after_calls_of_their_own(job: Job) -> None:
    """Ranks of one node meet on it. Those of several nodes must not be told to come there."""
    assert job.state == "FAILED", job.log
    assert job.log.count("mpicoll: the ranks made different calls. The job ends (communicator of ranks 0-3)") == 1
    for ranks, op in (("0-1", "sum"), ("2-3", "max")):
        assert re.search(
            rf"^  ranks {ranks}  call 0: allreduce {op} of 5 float64, at \S*node_first.py:13", job.log, re.M
        )
    assert "has ended before its program has" not in job.log, job.log


@pytest.mark.usefixtures("queue")
def test_a_node_that_is_lost(environments: list[Environment], tmp_path: Path) -> None:
    """It answers nobody, and no connection is closed. A cluster of its own: other tests need both nodes of theirs."""
    nodes = [(f"node{2 * i + 1}", f"node{2 * i + 2}") for i in range(len(environments))]
    with Cluster(2 * len(environments), patience=30) as own:  # by then the ranks have said what they see
        jobs = []
        for environment, pair in zip(environments, nodes, strict=True):
            (folder := tmp_path / pair[0]).mkdir()
            job = submit(
                own,
                folder,
                f"--time={MINUTES}",
                f"--nodelist={','.join(pair)}",
                "--no-requeue",
                "slurm/multi_node.sbatch",
                MPICOLL_ENV=str(environment.path),
                MPICOLL_TIMEOUT="8",
                PROGRAM=f"{PROGRAMS}/busy.py",
                LAUNCHER="mpirun" if environment.pmi == "pmix" else "srun-pmi2",
            )
            jobs.append(job)
        for job in jobs:
            job.says("rank 0 is busy")
        lost = time.time()
        for _, second in nodes:
            own.lose(second)
        for job in jobs:
            job.says("do not answer: they are stopped or stuck, or their nodes are lost")
            job.wait()
            assert job.state in ("FAILED", "NODE_FAIL"), job.log
            assert "went on" not in job.log
            assert datetime.fromisoformat(job["EndTime"]).timestamp() - lost <= SECONDS, job.log


def test_ranks_on_two_nodes_outlive_one(environment: Environment, cluster: Cluster, tmp_path: Path) -> None:
    """With mpicoll run --elastic, in a job script of the user's own."""
    if environment.pmi != "pmix":
        pytest.skip("this MPI has no ULFM")
    job = submit(
        cluster,
        tmp_path,
        f"--time={MINUTES}",
        f"--priority={FIRST}",
        f"{PROGRAMS}/elastic.sbatch",
        MPICOLL_ENV=str(environment.path),
        PROGRAM=f"{PROGRAMS}/outlives.py",
    )
    job.wait()
    assert job.state == "COMPLETED", job.log
    assert job.log.count("a sum of 3 ones, of a job that began on ['node1', 'node2']") == 3, job.log
    assert "mpicoll: 1 of 4 ranks was lost (rank 3); the others went on to the end without it" in job.log

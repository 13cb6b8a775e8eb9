"""Where the ranks of a job are, and how they reach each other."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests.cluster.jobs import PROGRAMS, Environment, Job

WHERE = f"{PROGRAMS}/where.py"
WHOLE_NODES = ("--exclusive", "--gpus-per-node=0")
"""Their GPUs, too, although the job asks for none."""


def ranks(job: Job) -> list[dict[str, int]]:
    """What each rank of programs/where.py said, by rank."""
    return sorted((json.loads(said) for said in re.findall(r"where (\{.*?\})", job.log)), key=lambda said: said["rank"])


def cores(text: str) -> set[int]:
    """Those of a list such as 0,4-7."""
    ends = (part.split("-") for part in text.split(","))
    return {core for first, *last in ends for core in range(int(first), int(*last or [first]) + 1)}


@pytest.mark.job("single_node", PROGRAM=WHERE, DOCTOR="no")
def test_one_node(job: Job, environment: Environment) -> None:
    assert job.state == "COMPLETED", job.log
    assert not [*job.folder.glob("*/doctor*.txt")]
    said = ranks(job)
    assert [(r["rank"], r["size"]) for r in said] == [(0, 2), (1, 2)], job.log
    assert len({r["host"] for r in said}) == 1


def check_two_nodes(job: Job) -> None:
    assert job.state == "COMPLETED", job.log
    said = ranks(job)
    assert [(r["rank"], r["size"]) for r in said] == [(rank, 4) for rank in range(4)], job.log
    assert Counter(r["host"] for r in said) == {"node1": 2, "node2": 2}
    for found in (job.log, job.results("doctor.txt").read_text()):
        assert re.search(r"^mpicoll .*, 4 ranks on 2 nodes$", found, re.MULTILINE), found
        assert "0 problems" in found
        where = re.findall(
            r"^ok +cores +(.*): 2 ranks a node, on cores ([\d,-]+) \| ([\d,-]*\d)\b", found, re.MULTILINE
        )
        assert ", ".join(ranks for ranks, *_ in where) == "ranks 0-1 on node1, ranks 2-3 on node2", found
        assert not any(cores(first) & cores(second) for _, first, second in where), found
    # Each node's sum depends on all that the other holds. With --exclusive nobody else sent this.
    assert all(r["sent"] >= r["bytes"] for r in said), said


@pytest.mark.job("multi_node", *WHOLE_NODES, PROGRAM=WHERE, LAUNCHER="mpirun")
def test_mpirun_in_the_allocation(job: Job) -> None:
    check_two_nodes(job)
    assert "launcher mpirun" in job.log


@pytest.mark.job("multi_node", *WHOLE_NODES, PROGRAM=WHERE, LAUNCHER="srun-{pmi}")
def test_srun(job: Job, environment: Environment) -> None:
    check_two_nodes(job)
    assert f"launcher srun-{environment.pmi}" in job.log


@pytest.mark.job(
    "multi_node", *WHOLE_NODES, "--export=MPICOLL_ENV,PROGRAM,LAUNCHER", PROGRAM=WHERE, LAUNCHER="srun-{pmi}"
)
def test_what_the_job_sets_reaches_the_ranks_although_sbatch_exports_little(job: Job) -> None:
    check_two_nodes(job)


@pytest.mark.job("multi_node", *WHOLE_NODES, PROGRAM=f"{PROGRAMS}/meets.py", LAUNCHER="srun-{pmi}")
def test_srun_lets_no_rank_leave_a_meeting_before_all_have_come(job: Job, environment: Environment) -> None:
    if environment.pmi != "pmix":
        pytest.skip("this MPI meets by PMI2")
    assert job.state == "COMPLETED", job.log
    met = re.search(r"^meets (.*)$", job.log, re.MULTILINE)
    assert met, job.log
    came, went, status = zip(*json.loads(met[1]), strict=True)
    assert status == (0, 0, 0, 0)
    assert max(came) <= min(went)

"""The templates with a purpose of their own: that each does what it is for, on two nodes with two ranks each."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.jobs import Job

pytestmark = pytest.mark.any_mpi

CORE = "--cpus-per-task=1"
TINY = "--min 8 --max 64 --factor 8"
COMPARED = ("allreduce", "alltoall")
"""Each collective is a launch of its own."""


def is_png(file: Path) -> bool:
    return file.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.job("gpu_multi_node", CORE)
def test_gpus_that_torch_cannot_use_end_the_job(job: Job) -> None:
    """The GPUs are Slurm's, but not torch's: nothing runs on the CPUs in their place."""
    assert job.state == "FAILED", job.log
    assert job.log.splitlines()[-1].startswith("mpicoll: 2 GPUs a node were granted, but torch cannot use them"), (
        job.log
    )
    assert re.search(r"^ok +GPU +the ranks see GPUs 0,1 \| 0,1$", job.log, re.MULTILINE), job.log
    assert "size" not in job.log


COMPARISON = "mpi_vs_nccl", "--gpus-per-node=0"


@pytest.mark.job(
    *COMPARISON,
    SIZES=TINY,
    SECONDS_A_SIZE="0.05",
    DTYPES="float32",
    BACKENDS="mpi,mpicoll",
    COLLECTIVES=",".join(COMPARED),
)
def test_the_comparison(job: Job) -> None:
    assert job.state == "COMPLETED", job.log
    assert job["JobName"] == "compare"
    found = json.loads(job.results("results.json").read_text())
    assert set(found["parts"]) == {f"{collective}-float32" for collective in COMPARED}
    assert {(part["environment"]["nodes"], part["environment"]["ranks"]) for part in found["parts"].values()} == {
        (2, 4)
    }
    report = job.results("report.md").read_text()
    for collective in COMPARED:
        assert re.search(rf"^\| {collective} \|", report, re.MULTILINE), report
        table = job.results(f"parts/{collective}-float32.txt").read_text()
        assert all(line in job.log for line in table.splitlines())
    assert is_png(job.results("float32.png"))


@pytest.mark.job(*COMPARISON, SIZES=TINY, SECONDS_A_SIZE="0.05", DTYPES="bfloat16,no", COLLECTIVES="bcast")
def test_a_comparison_with_a_part_that_fails(job: Job) -> None:
    assert job.state == "FAILED", job.log
    assert "--dtype: expected one of" in job.results("parts/bcast-no.txt").read_text()
    report = job.results("report.md").read_text()
    assert "Without a record: bcast-no." in report
    assert "| collective | mpi | mpicoll | mpicoll.torch | gloo |" in report
    assert re.search(r"^\| bcast \|( \d[^|]* at 8 \|){4}$", report, re.MULTILINE), report


@pytest.mark.job("ddp_train", "--gpus-per-node=0", "--cpus-per-task=1")
def test_training(job: Job) -> None:
    assert job.state == "COMPLETED", job.log
    assert "4 ranks over mpicoll, epoch 3: " in job.log


@pytest.mark.job("ddp_train", "--gpus-per-node=0", "--cpus-per-task=1", "--ntasks-per-node=1", BACKEND="nccl")
def test_training_on_nccl_without_gpus(job: Job) -> None:
    assert job.state == "COMPLETED", job.log
    assert "nccl needs GPUs that torch can use: gloo instead" in job.log
    assert "2 ranks over gloo, epoch 3: " in job.log


def gathering_of(job: Job) -> Job:
    """The job that gathers what an array has measured; it has ended."""
    submitted = re.search(r"^Submitted batch job (\d+)$", job.log, re.MULTILINE)
    assert submitted, job.log
    gathering = Job(job.cluster, submitted[1], job.folder)
    gathering.wait()
    return gathering


@pytest.mark.job("scaling_array", SIZES=TINY)
def test_an_array_and_the_job_that_gathers_it(job: Job) -> None:
    tasks = job.properties()
    assert [(task["JobState"], task["ArrayTaskId"]) for task in tasks] == [("COMPLETED", "2"), ("COMPLETED", "1")], (
        job.log
    )
    gathering = gathering_of(job)
    assert gathering.state == "COMPLETED", gathering.log
    for nodes in (1, 2):
        found = json.loads(job.results(f"nodes-{nodes}.json").read_text())
        assert (found["environment"]["nodes"], found["environment"]["ranks"]) == (nodes, 2 * nodes)
    assert is_png(job.results("scaling.png"))
    assert json.loads(job.results("scaling.json").read_text())
    assert "allreduce" in job.results("scaling.txt").read_text()


@pytest.mark.job("scaling_array", "--array=2", BIND="nothing")
def test_an_array_whose_first_task_fails_is_gathered(job: Job) -> None:
    assert job.state == "FAILED", job.log
    gathering = gathering_of(job)
    assert gathering.state == "FAILED"
    assert "expected nodes-*.json in it; given" in gathering.log


REFUSED = [
    (("gpu_multi_node", CORE, "--ntasks-per-node=1"), "one rank a GPU: expected --ntasks-per-node=2; given 1"),
    (("gpu_multi_node", CORE, "--gpus-per-node=0"), "expected --gpus-per-node to be at least 1; given 0"),
    (("scaling_array", "--array=4"), "--array: expected numbers from 1 to 2, as --nodes says; given 4"),
    *[(("container",), "CONTAINER: expected apptainer or singularity on PATH")] * (not shutil.which("apptainer")),
]


@pytest.mark.parametrize("said", [pytest.param(said, marks=pytest.mark.job(*job)) for job, said in REFUSED])
def test_what_cannot_be_ends_as_failed(job: Job, said: str) -> None:
    assert job.state == "FAILED", job.log
    assert said in job.log

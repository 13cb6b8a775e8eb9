"""What ``mpicoll slurm`` prints is what Slurm takes, and runs without any file beside it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from mpicoll.slurm.sbatch import TEMPLATES
from tests.cluster.cluster import Cluster
from tests.cluster.jobs import PROGRAMS, Environment, Job

pytestmark = pytest.mark.any_mpi


def test_a_script_piped_into_sbatch(cluster: Cluster, environment: Environment, tmp_path: Path) -> None:
    options = ["--nodes=1", "--ntasks-per-node=2", "--time=2", "--job-name=piped"]
    variables = [f"--set=PROGRAM={PROGRAMS}/bare.py", f"--set=MPICOLL_ENV={environment.path}"]
    words = [str(environment.path / "bin/mpicoll"), "slurm", "multi-node", *options, *variables]
    line = f"set -o pipefail; {shlex.join(words)} | sbatch --parsable"
    done = cluster.run("bash", "-c", line, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    job = Job(cluster, done.stdout.strip(), tmp_path)
    job.wait()
    assert job.state == "COMPLETED", job.log
    assert job.log.splitlines().count("sum of ones: 2") == 2, job.log
    assert [file.name for file in tmp_path.glob("*.out")] == [f"piped-{job.number}.out"]


def checked(cluster: Cluster, environment: Environment, *words: str) -> tuple[int, str]:
    argv = [str(environment.path / "bin/mpicoll"), "slurm", *words, "--check"]
    done = cluster.run(*argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_slurm_would_take_it(cluster: Cluster, environment: Environment, template: str) -> None:
    words = ["--cpus-per-task=1", "--time=10"]  # the emulated nodes have few cores, and one hour
    if template == "container":
        words += ["--set", "CONTAINER=image.sif"]
    code, said = checked(cluster, environment, template, *words)
    assert (code, "would take it" in said) == (0, True), said


def test_slurm_would_not_take_it(cluster: Cluster, environment: Environment) -> None:
    code, said = checked(cluster, environment, "multi-node", "--partition=absent")
    assert (code, "invalid partition specified: absent" in said) == (1, True), said

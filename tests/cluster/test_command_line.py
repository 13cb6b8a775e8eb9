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


@pytest.mark.parametrize("template", TEMPLATES)
def test_slurm_would_take_it(cluster: Cluster, environment: Environment, template: str) -> None:
    words = ["--cpus-per-task=1", "--time=10"]  # the emulated nodes have few cores, and one hour
    if template == "container":
        words += ["--set", "CONTAINER=image.sif"]
    argv = [str(environment.path / "bin/mpicoll"), "slurm", template, *words]
    line = f"set -o pipefail; {shlex.join(argv)} | sbatch --test-only"
    done = cluster.run("bash", "-c", line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout

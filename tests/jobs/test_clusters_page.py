"""docs/how-to/clusters.md quotes what is really printed: each failure is provoked, and each quotation looked for."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.jobs.jobs import ON_LINUX, REPOSITORY, done, python, run, script

pytestmark = pytest.mark.last_mpi  # one of the failures needs MPICH

STARTED = "SLURM_STEP_NUM_TASKS=4", "PMI_SIZE=4", "OMPI_COMM_WORLD_SIZE=4", "TORCHELASTIC_RUN_ID=none WORLD_SIZE=4"
"""What processes are told of the others that were started with them."""
JOB = {
    "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "job", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node1", "MPICOLL_SLURM": str(REPOSITORY / "slurm"),
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}  # fmt: skip
DIES = """
    import os, signal, sys
    import mpicoll

    rank = mpicoll.Communicator().rank
    if rank == 1 and sys.argv[1] == "raises":
        raise ValueError("of rank 1")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    mpicoll.Communicator().barrier()
"""
ON_A_GPU = """
    from mpi4py import MPI
    from mpicoll.bench.backends import Unavailable, open_backend
    from mpicoll.bench.records import Note
    from mpicoll.bench.session import Session

    try:
        open_backend("mpi", Session(MPI.COMM_WORLD, MPI.COMM_SELF, "cuda:0"))
    except Unavailable as reason:
        print(Note("mpi", str(reason)))
"""


def quotations() -> list[str]:
    page = (REPOSITORY / "docs/how-to/clusters.md").read_text().partition("## Find out why a job failed")[2]
    blocks = re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def template(folder: Path, file: str = "multi_node", *, env: dict[str, str]) -> str:
    """What a job that runs on this node, outside of Slurm, prints."""
    environment = {**JOB, "RESULTS": str(folder), "MPICOLL_ENV": str(Path(sys.prefix)), "LAUNCHER": "mpirun", **env}
    return done("bash", str(REPOSITORY / f"slurm/{file}.sbatch"), env=environment).output


def test_what_a_job_need_not_say(tmp_path: Path) -> None:
    """salloc sets fewer variables than sbatch."""
    unset = [f"--unset={name}" for name in JOB if name.startswith("SLURM_")]
    job = {
        **JOB, "RESULTS": str(tmp_path), "MPICOLL_ENV": sys.prefix, "LAUNCHER": "mpirun", "BIND": "numa",
        "DOCTOR": "no", "PROGRAM": "-c print('a_rank')",
    }  # fmt: skip
    shown = done("env", *unset, "SLURM_JOB_ID=1", "bash", str(REPOSITORY / "slurm/single_node.sbatch"), env=job).output
    assert shown.splitlines().count("a_rank") == 1, shown


NO_LAUNCHER = """
    import sys
    from mpicoll.cli import main

    sys.executable = "/nowhere/python3"
    main(["run", "-n", "2", "-c", "pass"])
"""


@ON_LINUX
def test_failures_print_what_the_page_says(tmp_path: Path) -> None:
    folder = tmp_path
    dies = script(folder, DIES)
    nowhere, nothing = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}, {"CUDA_VISIBLE_DEVICES": ""}
    bench = ["-m", "mpicoll", "bench", "allreduce", "--max", "8", "--backends", "mpi,gloo"]
    on_a_core = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-m", "mpicoll", "run", "-n", "2"]
    makes = "import mpicoll; mpicoll.Communicator()"
    alone = [python("-c", makes, env=dict(each.split("=") for each in told.split())).output for told in STARTED]
    printed = [
        *alone,
        python("-c", makes, env=nowhere).output,
        python(script(folder, NO_LAUNCHER, "no_launcher.py"), env={"PATH": ""}).output,
        python(script(folder, ON_A_GPU, "gpu.py")).output,
        done(*on_a_core, "-m", "mpicoll", "doctor").output,
        run(2, *bench, env={"GLOO_SOCKET_IFNAME": "ib7"}).output,
        template(folder, env=nowhere),
        template(folder, env={"MPICOLL_ENV": "/nowhere"}),
        template(folder, env={"MPICOLL_MODULES": "nowhere"}),
        template(folder, env={"LAUNCHER": "srun-nothing"}),
        template(folder, env={"SLURM_GPUS_ON_NODE": "2", **nothing}),
        template(folder, "mpi_vs_nccl", env={"SITE": "ethernet", "unfit": "RoCE"}),
        template(folder, env={"PROGRAM": f"{dies} raises"}),
        template(folder, env={"PROGRAM": f"{dies} is-killed"}),
    ]
    quoted = quotations()
    assert len(quoted) > 15
    for line in quoted:
        pattern = re.escape(line).replace(r"\.\.\.", ".{1,400}?")
        whole = "\n".join(printed)
        assert re.search(pattern, whole, re.DOTALL), f"nothing printed {line!r}:\n{whole}"

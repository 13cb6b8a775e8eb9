"""A process that cannot meet the others it was started with says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll.errors import LaunchError
from mpicoll.launch.launch_env import check_not_alone, launched_rank, started_as, under_launcher
from tests.jobs.jobs import AS_ROOT, done, half, others_launchers, python, run, script

OF_LAUNCHERS = re.compile(r"OMPI_COMM_WORLD_\w+|PMIX?_\w+|MPI_LOCAL\w+|SLURM_\w+|WORLD_SIZE|RANK|TORCHELASTIC_\w+")
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}


def environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in os.environ:
        if OF_LAUNCHERS.fullmatch(name):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "variable"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4"),
        ({"PMI_SIZE": "4"}, "PMI_SIZE=4"),
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"}, "PMI_SIZE=4"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS=4"),
        ({"SLURM_STEP_NUM_TASKS": "1", **TORCHRUN}, "WORLD_SIZE=4"),
        (TORCHRUN, r"WORLD_SIZE=4\): torchrun"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4"),
    ],
)
def test_alone_though_started_beside_others(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], variable: str
) -> None:
    environment(monkeypatch, variables)
    with pytest.raises(LaunchError, match=f"one of 4 .*{variable}.*mpicoll run -n 4 script.py.*srun --mpi=pmix"):
        check_not_alone(1)
    check_not_alone(4)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"},
        {"OMPI_COMM_WORLD_SIZE": "1", **TORCHRUN},
        {"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "4"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1"},
    ],
)
def test_alone_as_it_should_be(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    environment(monkeypatch, variables)
    check_not_alone(1)


@pytest.mark.parametrize(
    ("variables", "rank", "launched"),
    [
        ({}, None, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}, 1, True),
        ({"MPI_LOCALNRANKS": "2", "PMI_SIZE": "2", "PMI_RANK": "1", "SLURM_STEP_NUM_TASKS": "1"}, 1, True),
        ({"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "4"}, 3, True),  # srun --mpi=pmix
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "1"}, 0, False),  # a shell under srun --pty
        ({"SLURM_STEP_NUM_TASKS": "4"}, None, False),
        (TORCHRUN, None, False),
    ],
)
def test_under_launcher(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], rank: int | None, launched: bool
) -> None:
    environment(monkeypatch, variables)
    assert launched_rank() == rank
    assert under_launcher() == launched


def test_a_rank_that_srun_starts_alone() -> None:
    """It has the variables of a shell under ``srun --pty``, but a launcher starts ``mpicoll.rank`` for ranks only."""
    program = "from mpicoll.launch.launch_env import under_launcher; print(under_launcher())"
    slurms = {"PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "1"}
    for module, expected in ((["-m", "mpicoll.rank"], "True"), ([], "False")):
        argv = [sys.executable, *module, "-c", program]
        assert subprocess.check_output(argv, env={**os.environ, **slurms}, text=True).strip() == expected


@pytest.mark.parametrize(
    ("variables", "started"),
    [
        ({}, (None, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "0", "RANK": "0"}, (1, 2)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, (3, 4)),
        ({"PMIX_RANK": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}, (3, 4)),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}, (2, 4)),
        ({"WORLD_SIZE": "4", "RANK": "1"}, (1, 4)),
        ({"WORLD_SIZE": "4"}, (None, 4)),
    ],
)
def test_started_as(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], started: tuple[int | None, int]
) -> None:
    environment(monkeypatch, variables)
    assert started_as() == started


COMMUNICATOR = "import mpicoll; print(f'size {mpicoll.Communicator().size}')"


@pytest.mark.parametrize("variables", [TORCHRUN, {"SLURM_STEP_NUM_TASKS": "4"}])
def test_a_communicator_is_refused(variables: dict[str, str]) -> None:
    result = python("-c", COMMUNICATOR, env=variables)
    assert result.code != 0
    assert "LaunchError: this process is alone in its MPI world" in result.output
    assert "size 1" not in result.output


@pytest.mark.skipif(not others_launchers(), reason="needs another MPI: beside this environment, or the system's")
@pytest.mark.parametrize("launcher", others_launchers(), ids=str)
def test_two_mpis_mixed(launcher: Path) -> None:
    """Some start each other's ranks properly, such as MPICH and Intel MPI; none may start ranks that are alone."""
    result = done(str(launcher), "-n", "2", sys.executable, "-c", COMMUNICATOR, env=AS_ROOT)
    assert "size 1" not in result.output
    if result.code == 0:
        assert result.output.count("size 2") == 2, result.output
    elif "Fatal error in internal_Init" not in result.output:  # MPICH's launcher and a younger Intel MPI
        assert "LaunchError: this process" in result.output, result.output
        assert "mpicoll run -n 2 script.py" in result.output


CHILDREN = """
    import multiprocessing, sys
    import mpicoll

    def use(queue):
        try:
            queue.put(mpicoll.Communicator().size)
        except mpicoll.errors.LaunchError as error:
            queue.put(str(error))

    if __name__ == "__main__":
        method, *parent = sys.argv[1:]
        if parent:
            mpicoll.Communicator()
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=use, args=(queue,))
        child.start()
        print("child:", queue.get(), flush=True)
        child.join()
        if not parent:
            mpicoll.Communicator()  # all ranks of a job must initialise MPI if one does
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("parent", [(), ("initialised",)], ids=["bare", "initialised"])
def test_a_child_of_a_rank_is_not_a_rank(tmp_path: Path, method: str, parent: tuple[str, ...]) -> None:
    result = run(2, script(tmp_path, CHILDREN), method, *parent)
    assert result.code == 0, result.output
    assert result.output.count("child: a multiprocessing child of an MPI rank cannot use MPI") == 2


IMPORTED = """
    import multiprocessing, sys
    import mpicoll

    comm = mpicoll.Communicator()
    if __name__ == "__main__":
        multiprocessing.get_context(sys.argv[1]).Pool(2).map(abs, range(4))
"""


@pytest.mark.parametrize("method", half(["spawn", "forkserver"]))
def test_a_child_that_imports_the_ranks_program_ends_the_job(tmp_path: Path, method: str) -> None:
    """A Pool would start such children again without end."""
    result = run(2, script(tmp_path, IMPORTED), method)
    assert result.code != 0
    said = "LaunchError: a multiprocessing child of an MPI rank imports the rank's program"
    assert said in result.output, result.output
    assert 'Put what the program does under `if __name__ == "__main__":`' in result.output


STARTS = """
    import os, subprocess, sys
    import mpicoll

    comm = mpicoll.Communicator()
    launcher = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    starts = {
        "a child": [sys.executable],
        "a job": [sys.executable, "-m", "mpicoll", "run", "-n", "2"],
        "the launcher": [launcher, "-n", "2", sys.executable],
    }
    for what, argv in starts.items() if comm.rank == 0 else ():
        code = "import sys, mpicoll; sys.stdout.write(f'size {mpicoll.Communicator().size}\\\\n')"
        done = subprocess.run([*argv, "-c", code], capture_output=True, text=True, close_fds=what != "a child")
        print(what, *done.stdout.split(), *done.stderr.splitlines()[-1:], flush=True)
    comm.barrier()
"""


@pytest.mark.parametrize("launcher", ["mpicoll", "MPI's own"])
def test_what_a_rank_starts_is_no_rank_or_one_of_another_job(tmp_path: Path, launcher: str) -> None:
    path = script(tmp_path, STARTS)
    if launcher == "mpicoll":
        result = run(1, path)
    else:
        result = done(str(Path(sys.executable).with_name("mpiexec")), "-n", "1", sys.executable, path, env=AS_ROOT)
    assert result.code == 0, result.output
    refused = "LaunchError: this process was started by an MPI rank .process [0-9]+. and cannot use MPI"
    assert re.search(f"^a child .*{refused}", result.output, re.M), result.output
    assert re.search("^a job size 2 size 2", result.output, re.M), result.output
    assert re.search("^the launcher size 2 size 2", result.output, re.M), result.output


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_of_a_plain_process_has_a_world_of_its_own(tmp_path: Path, method: str) -> None:
    result = python(script(tmp_path, CHILDREN), method)
    assert result.code == 0, result.output
    assert "child: 1\n" in result.output

"""A process that cannot meet the others it was started with says so, and so does one that a rank starts.

Among them are the workers of torch's DataLoader: forked ones hold the rank's MPI, spawned ones import its script again.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mpicoll.errors import LaunchError
from mpicoll.launch.launch_env import check_not_alone, launched_rank, started_as, under_launcher
from tests.jobs.jobs import AS_ROOT, NEEDS_TORCH, done, half, others_launchers, python, run, script

OF_LAUNCHERS = re.compile(r"OMPI_COMM_WORLD_\w+|PMIX?_\w+|MPI_LOCAL\w+|SLURM_\w+|WORLD_SIZE|RANK|TORCHELASTIC_\w+")
STEP = "SLURM_STEP_NUM_TASKS"
TORCHRUN = {"WORLD_SIZE": "4", "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_RANK": "1"}
MPICH = {"MPI_LOCALNRANKS": "4", "PMI_SIZE": "4", "PMI_RANK": "3", STEP: "1"}

# Variables; as which rank of how many the process was started; whether a launcher of MPI's has started it; and of which
# variable the error is that refuses a world of one.
STARTED: list[tuple[dict[str, str], tuple[int | None, int], bool, str]] = [
    ({}, (None, 1), False, ""),
    ({"WORLD_SIZE": ""}, (None, 1), False, ""),
    ({"WORLD_SIZE": "1"}, (None, 1), False, ""),
    ({"WORLD_SIZE": "4"}, (None, 4), False, "WORLD_SIZE=4"),
    ({"WORLD_SIZE": "4", "RANK": "1"}, (1, 4), False, "WORLD_SIZE=4"),
    (TORCHRUN, (0, 4), False, r"WORLD_SIZE=4\): torchrun"),
    ({STEP: "1", **TORCHRUN}, (0, 4), False, "WORLD_SIZE=4"),
    ({STEP: "4"}, (None, 4), False, f"{STEP}=4"),
    ({STEP: "4", "SLURM_PROCID": "2"}, (2, 4), False, f"{STEP}=4"),
    ({STEP: "1"}, (None, 1), False, ""),
    ({"SLURM_NTASKS": "4"}, (None, 1), False, ""),
    ({STEP: "4", "PMIX_RANK": "3", "SLURM_PROCID": "3"}, (3, 4), True, f"{STEP}=4"),  # srun --mpi=pmix
    ({STEP: "1", "PMI_RANK": "0", "PMI_SIZE": "1"}, (0, 1), False, ""),  # a shell under srun --pty
    ({STEP: "4", "PMI_SIZE": "1"}, (None, 1), False, ""),
    ({STEP: "1", "PMI_SIZE": "4"}, (None, 4), False, "PMI_SIZE=4"),
    ({STEP: "4", "PMI_SIZE": "4", "PMI_RANK": "3", "SLURM_PROCID": "3"}, (3, 4), True, "PMI_SIZE=4"),
    (MPICH, (3, 4), True, "PMI_SIZE=4"),
    ({**OPEN_MPI, "SLURM_PROCID": "0", "RANK": "0"}, (1, 2), True, "OMPI_COMM_WORLD_SIZE=2"),
    ({STEP: "4", "OMPI_COMM_WORLD_SIZE": "1"}, (None, 1), False, ""),
    ({**TORCHRUN, "OMPI_COMM_WORLD_SIZE": "1"}, (None, 1), False, ""),
]


@pytest.mark.parametrize(("variables", "started", "launched", "refused"), STARTED)
def test_what_variables_say(
    variables: dict[str, str],
    started: tuple[int | None, int],
    launched: bool,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in os.environ:
        if OF_LAUNCHERS.fullmatch(name):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rank, size = started
    assert (started_as(), under_launcher()) == (started, launched)
    assert not launched or launched_rank() == rank
    check_not_alone(4)
    with ExitStack() as raises:
        if refused:
            said = f"one of {size} .*{refused}.*mpicoll run -n {size} script.py.*srun --mpi=pmix"
            raises.enter_context(pytest.raises(LaunchError, match=said))
        check_not_alone(1)


def test_a_rank_that_srun_starts_alone() -> None:
    """It has the variables of a shell under ``srun --pty``, but a launcher starts ``mpicoll.rank`` for ranks only."""
    program = "from mpicoll.launch.launch_env import under_launcher; print(under_launcher())"
    result = python("-m", "mpicoll.rank", "-c", program, env={"PMI_RANK": "0", "PMI_SIZE": "1", STEP: "1"})
    assert result.output == "True\n"


COMMUNICATOR = "import mpicoll; print(f'size {mpicoll.Communicator().size}')"


def test_a_communicator_is_refused() -> None:
    result = python("-c", COMMUNICATOR, env=TORCHRUN).bad("LaunchError: this process is alone in its MPI world")
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

    def children():
        for method in ("spawn", "fork"):
            context = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            child = context.Process(target=use, args=(queue,))
            child.start()
            print("child:", queue.get(), flush=True)
            child.join()

    if __name__ == "__main__":
        children()
        if sys.argv[1] == "rank":
            mpicoll.Communicator()
            children()
"""


def test_a_child_of_a_rank_is_not_a_rank(tmp_path: Path) -> None:
    """Before and after the rank begins MPI."""
    result = run(2, script(tmp_path, CHILDREN), "rank").good()
    assert result.output.count("child: a multiprocessing child of an MPI rank cannot use MPI") == 2 * 4


def test_a_child_of_a_plain_process_has_a_world_of_its_own(tmp_path: Path) -> None:
    result = python(script(tmp_path, CHILDREN), "alone")
    assert (result.code, result.output) == (0, "child: 1\n" * 2)


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
    result = run(2, script(tmp_path, IMPORTED), method).bad()
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


LOADER = """
    import sys
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler
    import mpicoll.torch as dist

    class Squares(Dataset):
        def __len__(self):
            return 24
        def __getitem__(self, i):
            if sys.argv[1] == "fork":
                assert dist.get_world_size() == 2 and dist.get_rank() in (0, 1)  # as a dataset that takes its share
            return i, torch.tensor(float(i * i))

    def main(method):
        dist.init_process_group("mpicoll")
        rank, size = dist.get_rank(), dist.get_world_size()
        squares = Squares()
        sampler = DistributedSampler(squares, size, rank, shuffle=False)
        workers = 2 if method == "fork" else 1
        loader = DataLoader(squares, 4, sampler=sampler, num_workers=workers, multiprocessing_context=method)
        total = torch.zeros(())
        for indices, values in loader:
            total += values.sum()
            dist.barrier()  # communicates while the workers live
        dist.all_reduce(total)
        assert total.item() == sum(i * i for i in range(24)), total
        dist.destroy_process_group()
        print("epoch done", flush=True)

    if __name__ == "__main__":
        main(sys.argv[1])
"""


@NEEDS_TORCH
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_torchs_data_loader(tmp_path: Path, method: str) -> None:
    result = run(2, script(tmp_path, LOADER), method).good()
    assert result.output.count("epoch done") == 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_waits_for_itself(tmp_path: Path, ranks: int) -> None:
    """A rank that is alone in its communicator has nobody else who could end its wait, nor another thread."""
    program = """
    import numpy as np
    import mpicoll
    from mpicoll.errors import MessageError

    world = mpicoll.Communicator()
    for wait in (
        lambda comm: comm.recv(np.empty(4), 0),
        lambda comm: comm.recv(np.empty(4)),
        lambda comm: comm.irecv(np.empty(4), 0).wait(),
        lambda comm: comm.send(np.ones(1 << 20), 0),
        lambda comm: comm.sendrecv(np.ones(4), 0, np.empty(4), 0, recvtag=1),
        lambda comm: comm.probe(0),
        lambda comm: comm.recv_object(0),
    ):
        try:
            wait(world.split(world.rank))
        except MessageError as e:
            assert "waits for itself" in str(e)
        else:
            raise AssertionError("it did not wait")
    """
    program = script(tmp_path, program)
    (python(program) if ranks == 1 else run(ranks, program)).good()

"""``mpicoll.spawn``: a function called in new ranks, which all end with the call."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import mpicoll
from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.jobs import launcher, spawn
from tests.jobs.jobs import ended, python, run, script, started, until

# Each function is called in 3 ranks, by its name on the command line.
SCRIPT = """
    import os, signal, sys, time
    import mpicoll

    def world():
        from mpi4py import MPI
        return MPI.COMM_WORLD

    def report(rank, folder, words):
        assert world().rank == rank and world().size == 3
        assert __name__ == "__mp_main__" and sys.argv[0] == __file__
        open(os.path.join(folder, f"{rank} {words['key']}"), "w")
        world().Barrier()
        sys.exit(0)  # with success

    def fail(rank):
        world().Barrier()
        if rank == 2:
            raise ValueError("as rank 2 wants it")
        world().Barrier()

    def fail_before(rank):
        if rank == 1:
            raise ValueError(os.fsdecode(b"no text: \\xff"))
        world().Barrier()

    def leave(rank):
        if rank == 1:
            sys.exit("rank 1 leaves")
        world().Barrier()

    def die(rank):
        world().Barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world().Barrier()

    def wait(rank, folder):
        world().Barrier()
        wait_initialising(rank, folder)

    def wait_initialising(rank, folder):
        open(os.path.join(folder, str(rank)), "w")
        time.sleep(1000 if rank == 0 else 0)
        world().Barrier()

    if __name__ == "__main__":
        name, *args = sys.argv[1:]
        if name == "report":
            world()  # the parent may use MPI
            args.append({"key": "value"})
        print("returned", mpicoll.spawn(globals()[name], tuple(args), nprocs=3))
"""


def test_variables_that_place_ranks_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job scripts set them for all nodes of the job. With the flags of a job on this node, Open MPI refuses them."""
    places = {
        **dict.fromkeys(["PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_mapping_policy"], "slot:PE=2"),
        **dict.fromkeys(["PRTE_MCA_hwloc_default_binding_policy", "OMPI_MCA_hwloc_base_binding_policy"], "core"),
    }
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    assert spawn.call_in_ranks(spawn.pickled_call(print, (), imports_main=False), 3, quiet=True) == (0, "")
    assert set(places) <= set(launcher.command(launcher.Job(["x.py"], 2)).environment), (
        "`mpicoll run` does as it is told"
    )


def test_the_scripts_own_function_is_called_on_every_rank(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    result = python(script(tmp_path, SCRIPT), "report", str(ranks)).good()
    assert result.output == "returned None\n"
    assert sorted(file.name for file in ranks.iterdir()) == ["0 value", "1 value", "2 value"]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("fail", ["spawn: rank 2 failed", "in fail", "ValueError: as rank 2 wants it"]),
        ("fail_before", ["spawn: rank 1 failed", "in fail_before", r"ValueError: no text: \udcff"]),
        ("leave", ["spawn: rank 1 failed", "SystemExit: rank 1 leaves"]),
        ("die", ["spawn: a rank ended without an exception"]),
    ],
)
def test_a_rank_that_fails(tmp_path: Path, function: str, says: list[str]) -> None:
    result = python(script(tmp_path, SCRIPT), function).bad(code=1)
    assert "returned None" not in result.output
    raised = result.output.rpartition("mpicoll.errors.LaunchError")[2]
    assert all(words in raised for words in says), result.output
    if function != "die":
        assert result.output.count(says[-1]) == 1  # told once, not by the rank and by its parent


@pytest.mark.parametrize("function", ["wait", "wait_initialising"])
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
def test_no_rank_outlives_its_parent(tmp_path: Path, function: str, signal_: signal.Signals) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    with started(sys.executable, script(tmp_path, SCRIPT), function, str(ranks)) as (it, output):
        until(lambda: len(list(ranks.iterdir())) == 3, "all ranks started")
        os.kill(it.process.pid, signal_)
        result = ended(it, output)
    assert result.code == -signal_
    assert ("KeyboardInterrupt" in result.output) == (signal_ == signal.SIGINT)


F = "import mpicoll\ndef f(rank): pass\nmpicoll.spawn(f, nprocs=2)"


def test_where_it_cannot_be_called(tmp_path: Path) -> None:
    python("-c", F).bad("ArgumentError: spawn: fn: expected a function that a new process can import", code=1)
    python(script(tmp_path, F)).bad('only under `if __name__ == "__main__"`', code=1)  # a script without a guard
    run(2, script(tmp_path, SCRIPT), "fail").bad("StateError: spawn: this process already is a rank", code=1)


class Unpicklable:
    def __reduce__(self) -> str:
        raise ZeroDivisionError("no way")


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: mpicoll.spawn(lambda rank: None), "fn"),
        (lambda: mpicoll.spawn(print, (Unpicklable(),)), "args"),
        (lambda: mpicoll.spawn(print, "words"), "args"),  # type: ignore[call-overload]
        (lambda: mpicoll.spawn(7), "fn"),  # type: ignore[call-overload]
        (lambda: mpicoll.spawn(print, nprocs=0), "nprocs"),
        (lambda: mpicoll.spawn(print, nprocs=True), "nprocs"),
        (lambda: mpicoll.spawn(print, nprocs=2.0), "nprocs"),  # type: ignore[call-overload]
    ],
)
def test_nonsense_is_refused_before_anything_starts(
    call: object, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "find_launcher", None)
    with pytest.raises(ArgumentError) as caught:
        call()  # type: ignore[operator]
    assert (caught.value.operation, caught.value.argument) == ("spawn", argument)


def test_without_an_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="pip install"):
        mpicoll.spawn(print)

"""``mpicoll bench`` as people start it: it starts its own ranks, or is one of them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs.jobs import ON_LINUX, REPOSITORY, Done, ended, python, run, started, together, until
from tests.sharing import SHARED

pytestmark = pytest.mark.any_mpi

QUICK = ("--max", "1K", "--factor", "128", "--seconds", "0.01")


def bench(*words: str, ranks: int = 2, env: dict[str, str] | None = None) -> Done:
    return python("-m", "mpicoll", "bench", *words, f"-n{ranks}", env=env)


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_collectives_at_any_number_of_ranks(ranks: int) -> None:
    found = bench("all", "--backends", "mpicoll,mpi", *QUICK, "--root", str(ranks - 1), ranks=ranks).good(
        "# 0 wrong elements in"
    )
    lines = found.output.splitlines()
    # The table and nothing else: neither a progress bar nor a complaint.
    assert all(line.startswith("#") or re.fullmatch(r"\d+K?", line.split()[0]) for line in lines)
    assert len([line for line in lines if re.fullmatch(r"# \w+ (in|out-of)-place", line)]) == 11
    assert all(len(line) <= 80 for line in lines if not line.startswith("#"))


def test_files_are_written(tmp_path: Path) -> None:
    words = ["--json", str(tmp_path / "f.json")]
    if find_spec("matplotlib"):
        words += ["--plot", str(tmp_path / "f.png")]
    result = bench("all_gather,reduce_scatter", "--backends", "mpicoll,mpi", *QUICK, *words).good()
    found = json.loads((tmp_path / "f.json").read_text())
    sizes = [r["size"] for r in found["rows"] if (r["backend"], r["placement"]) == ("mpi", "out-of-place")]
    assert sizes == [8, 1024] * 2
    assert {r["collective"] for r in found["rows"]} == {"allgather", "reduce_scatter"}
    assert all(len(r["times_us"]) == r["calls"] and r["wrong"] == 0 for r in found["rows"])
    ours = "node" if SHARED else "native"
    assert {(r["backend"], r["route"]) for r in found["rows"]} == {("mpi", "native"), ("mpicoll", ours)}
    assert str(tmp_path) not in (tmp_path / "f.json").read_text()
    written = [word for word in words if not word.startswith("--")]
    assert result.output.splitlines()[-1] == f"# written: {', '.join(written)}"
    if find_spec("matplotlib"):
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(find_spec("torch") is None, reason="gloo comes with torch")
def test_torch_runs_beside_mpi_and_nccl_says_why_not() -> None:
    """Without a network: the ranks of one node meet over the loopback, whatever the host is called."""
    found = bench("broadcast,allreduce,scan,barrier", "--backends", "mpi,mpicoll.torch,torch,gloo,nccl", *QUICK).good(
        "# nccl does not run: "
    )
    for backend in ("gloo", "mpicoll.torch", "torch"):
        assert f"# {backend} does not run scan: torch has no scan" in found.output
        assert (
            f"# {backend} does not run allreduce out of place: torch's all_reduce works in place only" in found.output
        )
        lines = [line for line in found.output.splitlines() if not line.startswith("#")]  # a note may name it last
        measured = [line for line in lines if line.split()[-1] == backend]
        assert len(measured) == 5


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    words = ["bench", "allreduce", "-n2", "--backends", "mpi", "--max", "256M", "--seconds", "1", "--json", str(file)]
    with started(sys.executable, "-m", "mpicoll", *words) as (it, output):
        until(lambda: bool(re.search(r"^ +16 ", output.read_text(), re.MULTILINE)), "a second size")
        os.kill(it.process.pid, signal.SIGINT)
        result = ended(it, output)
    assert result.code == 130, result.output
    assert result.output.splitlines()[-2:] == ["# interrupted: what is above was measured before", f"# written: {file}"]
    sizes = [row["size"] for row in json.loads(file.read_text())["rows"] if row["placement"] == "in-place"]
    assert sizes[:2] == [8, 16]
    assert len(sizes) < 26  # the longest ones take seconds
    assert json.loads(file.read_text())["interrupted"]


def test_as_ranks_of_a_job_that_runs_already() -> None:
    found = run(2, "-m", "mpicoll", "bench", "allreduce", "--backends", "mpi", *QUICK).good()
    assert found.output.count("# allreduce") == 1  # one rank speaks


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["-w", "5"], {}, "mpicoll bench: not an argument of this command: '-w'"),
        (["--json", "/no/such/place/f.json"], {}, "mpicoll: bench: --json: expected a file in a directory"),
        (["--device", "cuda"], {"CUDA_VISIBLE_DEVICES": ""}, "mpicoll: bench: --device: expected "),
        (QUICK, {"MPICOLL_ALGORITHM": "allreduce:foo"}, "; given 'foo'"),  # no reason why a backend does not run
    ],
)
def test_what_cannot_be_measured(words: Sequence[str], env: dict[str, str], message: str) -> None:
    """Ranks are started only where they must find it."""
    found = bench("allreduce", "--backends", "mpicoll,mpi", *words, env=env).bad(message, code=2)
    assert found.output.count(message) == 1
    assert "Traceback" not in found.output
    assert env or len(found.output.splitlines()) == 1  # of a launched job, the launcher would have more to say


@ON_LINUX
def test_a_file_that_cannot_be_written() -> None:
    given = "given '/dev/full' (No space left on device)"
    found = bench("allreduce", "--backends", "mpi", *QUICK, "--json", "/dev/full").bad(
        f"mpicoll: bench: --json: expected a file that can be written; {given}", code=2
    )
    assert "Traceback" not in found.output


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    found = run(2, "-m", "mpicoll", "bench", "allreduce", "-n", "3", *QUICK, env=together(2, tmp_path)).bad(code=2)
    assert found.output.count("mpicoll: bench: -n: expected 2, the ranks that were started, or nothing; given 3") == 1


def test_the_gpu_check_says_why_it_does_nothing(tmp_path: Path) -> None:
    check, record = str(REPOSITORY / "benchmarks" / "gpu_check.py"), tmp_path / "record"
    python(check, "--out", str(record), env={"CUDA_VISIBLE_DEVICES": ""}).good("No GPU check: ")
    assert not record.exists()

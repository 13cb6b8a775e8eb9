"""``mpicoll bench`` as people start it: it starts its own ranks, or is one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DEADLINE = 120
QUICK = ("--max", "1K", "--factor", "128", "--seconds", "0.01")


def bench(*words: str, ranks: int = 2, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``mpicoll bench``; it and all that it started are ended at the deadline."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "mpicoll", "bench", *words, f"-n{ranks}"]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, **(env or {})}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"no end within {DEADLINE} s: {out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_collectives_at_any_number_of_ranks(ranks: int) -> None:
    done = bench("all", "--backends", "mpicoll,mpi", *QUICK, "--root", str(ranks - 1), ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert "# 0 wrong elements in" in done.stdout
    assert done.stderr == ""  # neither a progress bar nor a complaint
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("# ") and len(line.split()) == 2]
    assert len(names) == 11


def test_files_are_written(tmp_path: Path) -> None:
    words = ["--json", str(tmp_path / "f.json"), "--csv", str(tmp_path / "f.csv")]
    if find_spec("matplotlib"):
        words += ["--plot", str(tmp_path / "f.png")]
    done = bench("all_gather,reduce_scatter", "--backends", "mpicoll,mpi", *QUICK, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "f.json").read_text())
    assert [r["size"] for r in found["rows"] if (r["backend"], r["placement"]) == ("mpi", "out-of-place")] == [
        8,
        1024,
    ] * 2
    assert {r["collective"] for r in found["rows"]} == {"allgather", "reduce_scatter"}
    assert all(len(r["times_us"]) == r["calls"] and r["wrong"] == 0 for r in found["rows"])
    assert {r["route"] for r in found["rows"]} == {"native"}
    assert str(tmp_path) not in (tmp_path / "f.json").read_text()
    rows = (tmp_path / "f.csv").read_text().splitlines()
    assert len(rows) == len(found["rows"]) + 1
    if find_spec("matplotlib"):
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(find_spec("torch") is None, reason="gloo comes with torch")
def test_gloo_runs_beside_mpi_and_nccl_says_why_not() -> None:
    """Without a network: the ranks of one node meet over the loopback, whatever the host is called."""
    done = bench("broadcast,allreduce,scan", "--backends", "mpi,gloo,nccl", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "# nccl does not run: " in done.stdout
    assert "# gloo does not run scan: torch has no scan" in done.stdout
    assert "# gloo does not run allreduce out of place: torch's all_reduce works in place only" in done.stdout
    assert sum(" gloo " in line for line in done.stdout.splitlines() if not line.startswith("#")) == 4


@pytest.mark.skipif(find_spec("torch") is None, reason="bfloat16 arrays are torch's")
def test_bfloat16() -> None:
    done = bench("allreduce", "--backends", "mpicoll,mpi", "--dtype", "bfloat16", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "# mpi does not run allreduce: MPI has no datatype for bfloat16" in done.stdout
    assert " mpicoll " in done.stdout


def test_as_ranks_of_a_job_that_runs_already() -> None:
    from mpicoll.launch import command

    launch = command(["-m", "mpicoll", "bench", "allreduce", "--backends", "mpi", *QUICK], 2)
    environment = launch.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(launch.argv, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# allreduce") == 1  # one rank speaks


def test_a_world_of_another_size_is_refused() -> None:
    from mpicoll.launch import command

    launch = command(["-m", "mpicoll", "bench", "allreduce", "-n", "3", *QUICK], 2)
    environment = launch.environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(launch.argv, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 2
    assert done.stderr.count("mpicoll: bench: -n: expected 2, the ranks that were started, or nothing; given 3") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["allreduce", "--min", "12Q"], "mpicoll: bench: --min: expected a positive number of bytes"),
        (
            ["allreduce", "--min", "1M", "--max", "8"],
            "mpicoll: bench: --min: expected no more than --max (8); given 1M",
        ),
        (["allgahter"], "mpicoll: bench: collective: expected collective out of bcast"),
        (["allreduce", "--backends", "mpi,nickel"], "given 'nickel'"),
        (["allreduce", "--algorithms", "rong"], "mpicoll: bench: --algorithms: expected algorithm out of native"),
        (["allreduce", "--json", "/no/such/place/f.json"], "mpicoll: bench: --json: expected a file in a directory"),
    ],
)
def test_nonsense_launches_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    """Not even where no MPI could be found."""
    done = bench(*words, env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_gpu_that_is_not_there_is_one_line() -> None:
    done = bench("allreduce", "--device", "cuda")
    if done.returncode == 0:
        pytest.skip("there is a GPU")
    assert done.returncode == 2
    assert done.stderr.count("mpicoll: bench: --device: expected ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(find_spec("tqdm") is None, reason="the bar is tqdm's")
def test_a_bar_only_where_the_parent_has_a_terminal() -> None:
    import pty

    parent, child = pty.openpty()
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "mpicoll", "bench", "bcast", "--backends", "mpi", *QUICK]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=child,
        start_new_session=True,
    )  # fmt: skip
    os.close(child)
    seen = b""
    try:
        while chunk := _read(parent):
            seen += chunk
        out, _ = process.communicate(timeout=DEADLINE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        os.close(parent)
    assert b"bcast" in seen
    assert b"size" in seen
    assert b"\r" not in out  # the table itself is clean
    assert b"# 0 wrong elements" in out


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_the_gpu_check_says_why_it_does_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu_check.py"), "--out", str(tmp_path / "record")]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    assert "No GPU check: " in done.stdout
    assert not (tmp_path / "record").exists()

"""The command line as a whole: what it suggests for a misspelt word, and what the Tab key offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll.cli import main


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("benhc allreduce", "bench"),
        ("bench alreduce", "allreduce"),
        ("bench allreduce --bakends mpi", "--backends"),
        ("bench allreduce --backends mpicol", "mpicoll"),
        ("bench allreduce --algorithms rign", "ring"),
        ("bench allreduce --dtype flaot32", "float32"),
        ("algorithms allgahter", "allgather"),
        ("verify allreduce rabenseifer", "rabenseifner"),
        ("draw allreduce rign -o x.svg", "ring"),
        ("simulate allreduce --machine laptp", "laptop"),
        ("simulate allreduce --algorithms rign", "ring"),
        ("slurm compar", "compare"),
        ("slurm compare --site infinband", "infiniband"),
        ("slurm compare --set LAUNCHR=srun", "LAUNCHER"),
    ],
)
def test_what_may_have_been_meant(capsys: pytest.CaptureFixture[str], words: str, meant: str) -> None:
    try:
        code = main(words.split())
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert f"(did you mean '{meant}'?)" in err


def test_what_resembles_nothing_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "allreduce", "xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--version", "verify --help", "verify allreduce ring -n 2"])
def test_there_is_no_room_for_what_it_prints(words: str, unbuffered: str) -> None:
    argv = [sys.executable, "-m", "mpicoll", *words.split()]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 2
    assert done.stderr.startswith("mpicoll: there is no room for what it prints: ")
    assert done.stderr.count("\n") == 1


def test_there_is_no_memory_for_so_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "allreduce", "linear", "-n", str(10**11)]) == 2
    assert capsys.readouterr().err.startswith("mpicoll verify: there is not enough memory for this")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mpicoll sim", {"simulate"}),
        ("mpicoll bench --ba", {"--backends"}),
        ("mpicoll verify reduce", {"reduce", "reduce_scatter"}),
        ("mpicoll slurm --site ", {"auto", "efa", "ethernet", "infiniband", "none", "roce", "slingshot"}),
    ],
)
def test_completion(tmp_path: Path, line: str, offered: set[str]) -> None:
    """As a shell asks for it."""
    pytest.importorskip("argcomplete")
    file = tmp_path / "offered"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(file), "_ARGCOMPLETE_IFS": " "}
    asked |= {"_ARGCOMPLETE_SUPPRESS_SPACE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    subprocess.run([sys.executable, "-m", "mpicoll"], env={**os.environ, **asked}, timeout=60, check=True)
    assert set(file.read_text().split()) == offered

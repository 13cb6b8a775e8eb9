"""The command line as a whole: what it refuses, and what the Tab key offers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mpicoll.analysis.drawing.picture import MOST_RANKS
from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

REFUSED = {
    "": [("benhc allreduce", "invalid choice: 'benhc' (choose from ")],
    "bench": [("alreduce", "given 'alreduce'"), ("allreduce --bakends mpi", "of this command: '--bakends'")],
    "algorithms": [("allgahter", "given 'allgahter'")],
    "verify": [
        ("", "expected a collective or --all"),
        ("allreduce native", "verify: algorithm: expected one of"),
        ("allreduce rabenseifer", "verify: algorithm: expected one of ... given 'rabenseifer'"),
        ("allreduce -n 0", "expected N or FIRST:LAST ... given '0'"),
        ("allreduce ring -n 4 --nodes 2", "--nodes: expected none, as ring does not go by nodes; given 2"),
        ("allreduce ring -n 2 --nodes a,b", "--nodes: expected none, as ring does not go by nodes; given a,b"),
        ("allreduce -n 3 --nodes a,b", "verify: --nodes: expected the nodes of 3 ranks; given a,b"),
        ("barrier two_level -n 8 --nodes 0,1", "--nodes: expected the nodes of 8 ranks; given 0,1"),
        ("barrier two_level -n 8 --nodes 9", "verify: --nodes: expected at most the 8 ranks; given 9"),
        (f"allreduce linear -n {10**11}", "mpicoll verify: there is not enough memory for this"),
    ],
    "draw": [
        ("allreduce rign", "draw: algorithm: expected one of linear, ... given 'rign'"),
        ("allreduce ring -n 17", f"ranks: expected 2 to {MOST_RANKS} ranks; given 17"),
        ("allreduce segmented_ring -n 16", "ranks and segments: expected a picture of at most 12000 cells"),
        ("barrier two_level --segments 3", "segments: expected none, as two_level is not pipelined; given 3"),
        ("bcast chain --root 4", "root: expected a rank, 0 to 3; given 4"),
        ("allreduce ring -o picture.jpg", "file: expected a file whose name ends in .svg, .png, .html; given"),
        ("allreduce ring -o none/a.svg", "file: expected a file that can be written; given 'none/a.svg' (No such file"),
        ("allreduce none.py", "draw: algorithm: expected a file that exists; given 'none.py'"),
    ],
    "simulate": [
        ("all", "expected one of bcast, ... given 'all'"),
        ("bcast -n 0", "expected a number of ranks, at least 1; given '0'"),
        ("bcast --sizes 2K:1K", "expected bytes, or LOW:HIGH, ... given '2K:1K'"),
        ("allreduce --machine cray", "--machine: expected laptop, ethernet, ib-h100, or a file"),
        ("bcast --root 2", "--root: expected a rank below 2; given 2"),
        ("barrier --sizes 1K", "--sizes: expected nothing: a barrier"),
        ("allreduce --root 0", "--root: expected nothing: allreduce has no root; given 0"),
        ("allreduce --plot x.gif", "--plot: expected a name that ends in"),
        ("allreduce --plot x.svg --sizes 1K", "--plot: expected at least two sizes in --sizes"),
        ("allreduce --json one --goal one", "--goal: expected another file than --json; given 'one'"),
        ("allreduce --json /dev/full", "--json: expected a file that can be written; given '/dev/full' (No space"),
        ("allreduce --goal x.goal", "--goal: expected one of --algorithms and one size"),
        ("allreduce --placement cyclic", "expected a machine of several levels, as ethernet; given cyclic on laptop"),
        ("allreduce -n 8 --nodes 2", "--nodes: expected a machine of two levels"),
        ("allreduce -n 8 --nodes 3 --machine ethernet", "--nodes: expected a number that divides the 8 ranks; given 3"),
    ],
    "slurm": [
        ("single", "one of single-node, multi-node, ... 'single'"),
        ("compare --set LAUNCHR=srun", "--set: expected one of ... LAUNCHER, ... given 'LAUNCHR'"),
        ("single-node --site moon", "ethernet ... 'moon'"),
        ("single-node --nodes 2", "--nodes: expected 1, or the template multi-node; given 2"),
        ("single-node --nodes two", "--nodes: expected a number, at least 1; given 'two'"),
        ("single-node --time 1:2:3:4", "--time: expected minutes, H:MM:SS or D-HH:MM:SS; given '1:2:3:4'"),
        ("single-node --mem '4 GB'", "--mem: expected a number, with K, M, G or T; given '4 GB'"),
        ("single-node --partition 'a\n#SBATCH -N 9'", "--partition: expected one word; given 'a\\n#SBATCH -N 9'"),
        ("compare --gpus-per-node 2 --ntasks-per-node 8", "--ntasks-per-node: expected at most 2, ... given 8"),
        ("gpu-multi-node --gpus-per-node 4 --ntasks-per-node 2", "--ntasks-per-node: expected 4, ... given 2"),
        ("scaling --nodes 2 --array 1,2,4", "--nodes: expected at least 4, ... given 2"),
        ("train --gres gpu:1 --gpus-per-node 1", "--gres: expected it or --gpus-per-node"),
        ("scaling --array 0-3", "--array: expected numbers from 1 on, ... given '0-3'"),
        ("single-node --set SITE=x", "--set: expected --site for the preset of the network; given SITE=x"),
        ("single-node --set PROGRAM", "expected NAME=VALUE; given 'PROGRAM'"),
        ("single-node --set 'PROGRAM=a\nb'", "--set: expected a value of one line; given 'a\\nb'"),
        ("--nodes 2", "expected a template"),
        ("single-node --mail-type END", "--mail-type' ... Pass other options of sbatch to sbatch itself"),
    ],
}
"""By the command: what is given to it, and parts of the one line that it is refused with."""


@pytest.mark.parametrize(
    ("command", "words", "said"), [(command, *each) for command, cases in REFUSED.items() for each in cases]
)
def test_refused(command: str, words: str, said: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    if command == "draw":
        pytest.importorskip("matplotlib")
        words += "" if " -o " in words else " -o picture.svg"
    monkeypatch.chdir(tmp_path)
    try:
        code = main([*command.split(), *shlex.split(words)])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, err.count("\n")) == (2, 1), err
    assert "--nodes" not in words or not out, "it is refused before anything is proved"
    assert [part for part in said.split(" ... ") if part not in err] == [], err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--version", "verify allreduce ring -n 2"])
def test_there_is_no_room_for_what_it_prints(words: str, unbuffered: str) -> None:
    argv = [sys.executable, "-m", "mpicoll", *words.split()]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("mpicoll: there is no room for what it prints: ")


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
    subprocess.run([sys.executable, "-m", "mpicoll"], env={**os.environ, **asked}, timeout=600, check=True)
    assert set(file.read_text().split()) == offered

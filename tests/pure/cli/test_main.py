"""The command line as a whole: what it refuses."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from mpicoll.analysis.drawing.picture import MOST_RANKS
from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

REFUSED = {
    "": [("benhc allreduce", "COMMAND: invalid choice: 'benhc' (choose from ... run ... doctor")],
    "bench": [("alreduce", "given 'alreduce'"), ("allreduce --bakends mpi", "argument of this command: '--bakends'")],
    "algorithms": [("allgahter", "expected one of bcast, ... given 'allgahter'")],
    "verify": [
        ("", "expected a collective or --all"),
        ("allreduce native", "verify: algorithm: expected one of"),
        ("allreduce -n 0", "expected N or FIRST:LAST ... given '0'"),
        (f"allreduce linear -n {10**11}", "mpicoll verify: there is not enough memory for this"),
    ],
    "draw": [
        ("allreduce rign", "draw: algorithm: expected one of linear, ... given 'rign'"),
        ("allreduce ring --nodes 0,0,1,1", "nodes: expected none, as ring does not go by nodes; given [0, 0, 1, 1]"),
        ("barrier two_level --nodes 0,1", "nodes: expected the node of each of 4 ranks; given [0, 1]"),
        ("barrier two_level --nodes a,b", "--nodes: expected a number of a node, at least 0; given 'a'"),
        ("allreduce ring -n 17", f"ranks: expected 2 to {MOST_RANKS} ranks; given 17"),
        ("allreduce segmented_ring -n 16", "ranks and segments: expected a picture of at most 12000 cells"),
        ("barrier two_level --segments 3", "segments: expected none, as two_level is not pipelined; given 3"),
        ("bcast chain --root 4", "root: expected a rank, 0 to 3; given 4"),
        ("allreduce ring -o picture.jpg", "file: expected a file whose name ends in .svg, .png, .html; given"),
        ("allreduce ring -o none/a.svg", "draw: -o: expected a file in a directory that ... given 'none/a.svg'"),
    ],
    "simulate": [
        ("all", "expected one of bcast, ... given 'all'"),
        ("bcast -n 0", "expected a number of ranks, at least 1; given '0'"),
        ("bcast --sizes 2K:1K", "expected bytes, or LOW:HIGH, ... given '2K:1K'"),
        ("allreduce --machine cray", "--machine: expected laptop, ethernet, ib-h100, or a file"),
        ("barrier --sizes 1K", "--sizes: expected nothing: a barrier"),
        ("allreduce --algorithms ring,rign", "simulate: --algorithms: expected one of linear, ... given 'rign'"),
        ("barrier --plot x.svg", "--plot: expected nothing: a barrier has no sizes; given x.svg"),
        ("allreduce --plot x.gif", "--plot: expected a name that ends in"),
        ("allreduce --plot x.svg --sizes 1K", "--plot: expected at least two sizes in --sizes"),
        ("allreduce --json none/file", "--json: expected a file in a directory that exists and is writable; given"),
        ("allreduce --goal x.goal", "--goal: expected one of --algorithms and one size"),
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
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1), err
    assert [part for part in said.split(" ... ") if part not in err] == [], err
    assert not [*tmp_path.iterdir()]

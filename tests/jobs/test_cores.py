"""The cores that the ranks of ``mpicoll run`` get, what they are told of them, and the options of torchrun."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from mpicoll.launch.cores import physical
from tests.jobs.jobs import ON_LINUX, Done, python, run, script

pytestmark = ON_LINUX

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


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.skipif(COUNT != 2, reason="knows how two cores are shared")
def test_ranks_share_the_cores(tmp_path: Path) -> None:
    assert said(run(2, script(tmp_path, SAYS))) == [f"([{CORES[0]}], '1')", f"([{CORES[1]}], '1')"]


def test_more_ranks_than_cores_share_all(tmp_path: Path) -> None:
    assert said(run(COUNT + 1, script(tmp_path, SAYS))) == [f"({CORES}, '1')"] * (COUNT + 1)


def test_the_users_own_binding_and_threads_win(tmp_path: Path) -> None:
    words = ["-n", "2", "--launcher-args=--bind-to none", script(tmp_path, SAYS)]
    result = python("-m", "mpicoll", "run", *words, env={"OMP_NUM_THREADS": "7"})
    assert said(result) == [f"({CORES}, '7')"] * 2


def test_ranks_of_a_node_as_torchrun_names_them(tmp_path: Path) -> None:
    program = script(tmp_path, SAYS)
    for words in (["--nproc-per-node=2"], ["--standalone", "--nnodes", "1", "--nproc_per_node", "2"]):
        assert len(said(python("-m", "mpicoll", "run", *words, program))) == 2


def test_a_job_that_fails_is_started_again(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """
        import os, sys
        import mpicoll
        c = mpicoll.Communicator()
        c.barrier()
        sys.stdout.write(f"try {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
        c.barrier()
        if c.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] != "2":
            sys.exit(3)
        """,
    )
    result = python("-m", "mpicoll", "run", "-n", "2", "--max-restarts", "2", program)
    assert result.code == 0, result.output
    assert re.findall(r"^try \d", result.output, re.MULTILINE) == ["try 0", "try 0", "try 1", "try 1", "try 2", "try 2"]
    assert "mpicoll: the job has failed (3). Restart 2 of 2" in result.output
    result = python("-m", "mpicoll", "run", "-n", "2", "--max-restarts", "1", program)
    assert result.code == 3
    assert result.output.count("try") == 4


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["x.py"], "expected -n N, the number of ranks"),
        (["-n", "2", "--rdzv-endpoint=host:1", "x.py"], "'--rdzv-endpoint'. MPI connects the ranks"),
        (["-n", "2", "--rdzv_id", "7", "x.py"], "Options of its own launcher are for --launcher-args"),
        (["--nnodes=2", "--nproc-per-node=2", "x.py"], "name the nodes with --hostfile, or run it in a batch job"),
        (["--nnodes=1:4", "--nproc-per-node=2", "x.py"], "--elastic"),
        (["--nnodes=2", "-n", "2", "x.py"], "expected --nproc-per-node beside it"),
        (["-n", "2", "--nproc-per-node=2", "x.py"], "expected -n or --nproc-per-node; given both"),
        (["--nproc-per-node=gpu", "x.py"], "as many as a node has GPUs"),
        (["-n", "2", "--max-restarts=-1", "x.py"], "expected a number, at least 0"),
        (["-n", "2", "--elastic", "--max-restarts=1", "x.py"], "expected --elastic or --max-restarts; given both"),
    ],
)
def test_torchruns_other_options_are_answered(words: list[str], answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE"):
        monkeypatch.delenv(variable, raising=False)
    result = python("-m", "mpicoll", "run", *words)
    assert result.code == 2
    assert answer in result.output
    assert result.output.count("\n") == 1, result.output

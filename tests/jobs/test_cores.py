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


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return script(tmp_path, SAYS)


@pytest.mark.skipif(COUNT != 2, reason="knows how two cores are shared")
def test_ranks_share_the_cores(program: str) -> None:
    """Started by the words of torchrun, too."""
    for words in ("-n 2", "--standalone --nnodes 1 --nproc_per_node 2"):
        result = python("-m", "mpicoll", "run", *words.split(), program)
        assert said(result) == [f"([{CORES[0]}], '1')", f"([{CORES[1]}], '1')"]


def test_more_ranks_than_cores_share_all(program: str) -> None:
    assert said(run(COUNT + 1, program)) == [f"({CORES}, '1')"] * (COUNT + 1)


def test_the_users_own_binding_and_threads_win(program: str) -> None:
    result = run(2, "--launcher-args=--bind-to none", program, env={"OMP_NUM_THREADS": "7"})
    assert said(result) == [f"({CORES}, '7')"] * 2


FAILS = """
    import os, sys
    import mpicoll
    c = mpicoll.Communicator()
    c.barrier()
    sys.stdout.write(f"try {os.environ['TORCHELASTIC_RESTART_COUNT']}\\n")
    c.barrier()
    if c.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] != "1":
        sys.exit(3)
"""


def test_a_job_that_fails_is_started_again(tmp_path: Path) -> None:
    program = script(tmp_path, FAILS)
    result = run(2, "--max-restarts", "2", program).good("mpicoll: the job has failed (3). Restart 1 of 2")
    assert re.findall(r"^try \d", result.output, re.MULTILINE) == ["try 0", "try 0", "try 1", "try 1"]
    again = script(tmp_path, FAILS.replace('!= "1"', '!= "2"'))
    assert run(2, "--max-restarts", "1", again).bad(code=3).output.count("try") == 4

"""MPICOLL_CHECK=full in jobs: right programs go on as before, and wrong ones end with a table of who called what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import OURS, TORCH, half, run, script

FULL = {"MPICOLL_CHECK": "full"}
BEGIN = f"""{OURS}
assert (comm.allreduce(x) == comm.size).all()
MPI.COMM_WORLD.Barrier()  # from here on, the ranks do not wait for each other
"""
WRONG = {
    "op": (BEGIN, "comm.allreduce(x, op='max' if rank == 1 else 'sum')", "sum of 4", "max of 4"),
    "root": (BEGIN, "comm.bcast(x, root=min(rank, 1))", "root 1", "root 0"),
    "async": (TORCH, "dist.all_reduce(x if rank else x[:3], async_op=True).wait()", "sum of 4", "sum of 3"),
    "collective": (BEGIN, "comm.barrier() if rank == 2 else comm.allreduce(x)", "allreduce sum of 4", "barrier"),
}


@pytest.mark.parametrize("wrong", half(WRONG))
def test_different_calls_end_the_job(wrong: str, tmp_path: Path) -> None:
    begin, call, one, other = WRONG[wrong]
    run(3, script(tmp_path, begin + call), env=FULL).bad("the ranks made different calls:", one, other)


@pytest.mark.parametrize("way", half(["the communicator's timeout", "the environment's"]))
def test_a_rank_that_does_not_come(way: str, tmp_path: Path) -> None:
    """It computes on. The others name it, and the job ends."""
    own = way == "the communicator's timeout"
    program = f"{BEGIN}\nif {own}: comm.timeout = 3\nif rank == 1: time.sleep(600)\ncomm.allreduce(x)"
    result = run(3, script(tmp_path, program), env=FULL if own else {**FULL, "MPICOLL_TIMEOUT": "3"})
    result.bad("rank 1 did not come within 3 s, to allreduce sum of 4 float64")


NOT_IN_TIME = f"""{BEGIN}
comm, said = mpicoll.Communicator(timeout=3), Path(__file__).with_name("said")
try:
    if comm.rank == 0:
        comm.iallreduce(np.ones(4)).wait()
    while not said.exists():
        time.sleep(0.05)
except TimeoutError:
    print("not in time")
    said.touch()
"""


def test_a_call_that_does_not_block_and_to_which_a_rank_does_not_come(tmp_path: Path) -> None:
    """A thread waits for the other ranks in MPI, so the job cannot end as others do."""
    said = "rank 0 has waited for 13 s in making a communicator for the calls that do not block"
    run(2, script(tmp_path, NOT_IN_TIME), env=FULL).bad("not in time", said)


def test_a_rank_that_has_ended(tmp_path: Path) -> None:
    """Nobody waits for the timeout: it will not come."""
    result = run(3, script(tmp_path, f"{BEGIN}if rank != 1: comm.allreduce(x)"), env=FULL | {"MPICOLL_TIMEOUT": "600"})
    result.bad("mpicoll: a rank has finished, and others wait for it. The job ends")
    assert re.search(r"^  rank 1 +has not arrived and has ended its program$", result.output, re.MULTILINE)
    assert "TimeoutError" not in result.output


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    half(
        [
            ("MPICOLL_CHECK", "some", "off, watch, full"),
            ("MPICOLL_REPRODUCIBLE", "yes", "0 or 1, or nothing"),
            ("MPICOLL_TIMEOUT", "-1", "seconds, more than 0"),
            ("MPICOLL_TIMEOUT", "soon", "seconds, more than 0"),
            ("MPICOLL_DUMP", "/dev/null/calls", "a folder that can be written"),
            ("MPICOLL_TRACE", "/nowhere/trace.json", "a file that can be written"),
            ("MPICOLL_CHECK=off; MPICOLL_TRACE", "trace.json", "nothing, because MPICOLL_CHECK is off"),
        ]
    ),
)
def test_nonsense_is_refused_at_the_start(variable: str, value: str, expected: str) -> None:
    *others, name = variable.split("; ")
    env = dict(other.split("=") for other in others) | {name: value}
    result = run(2, "-c", "import mpicoll; mpicoll.Communicator(); print('made')", env=env).bad()
    assert result.output.count(f"mpicoll: {name}: expected {expected}; given '{value}'") == 1, result.output
    assert "made" not in result.output.splitlines()

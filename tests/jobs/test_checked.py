"""MPICOLL_CHECK=full in jobs: right programs go on as before, and wrong ones end with a table of who called what."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.jobs.jobs import REPOSITORY, half, run, script

FULL = {"MPICOLL_CHECK": "full"}
BEGIN = """
    import numpy as np
    import mpicoll

    comm = mpicoll.Communicator({arguments})
    rank, x = comm.rank, np.ones(4)
    assert (comm.allreduce(x) == comm.size).all()
"""
TORCH = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpicoll")
    rank, x = dist.get_rank(), torch.ones(4)
"""
WRONG = {
    "op": (BEGIN, "comm.allreduce(x, op='max' if rank == 1 else 'sum')", "sum of 4", "max of 4"),
    "root": (BEGIN, "comm.bcast(x, root=min(rank, 1))", "root 1", "root 0"),
    "async": (TORCH, "dist.all_reduce(x if rank else x[:3], async_op=True).wait()", "sum of 4", "sum of 3"),
    "collective": (BEGIN, "comm.barrier() if rank == 2 else comm.allreduce(x)", "allreduce sum of 4", "barrier"),
}


@pytest.mark.parametrize("example", half(["ddp.py", "fsdp.py"]))
def test_programs_of_torch_go_on(example: str) -> None:
    result = run(2, str(REPOSITORY / "examples" / example), env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert result.code == 0, result.output


@pytest.mark.parametrize("wrong", half(WRONG))
def test_different_calls_end_the_job(wrong: str, tmp_path: Path) -> None:
    begin, call, one, other = WRONG[wrong]
    result = run(3, script(tmp_path, begin.format(arguments="") + f"    {call}\n"), env=FULL)
    assert result.code != 0
    assert "the ranks made different calls:" in result.output
    assert one in result.output
    assert other in result.output


@pytest.mark.parametrize("way", ["the communicator's timeout", "the environment's"])
def test_a_rank_that_does_not_come(way: str, tmp_path: Path) -> None:
    """It computes on. The others name it, and the job ends."""
    own = way == "the communicator's timeout"
    begin = BEGIN.format(arguments="timeout=3" if own else "")
    rest = """
    import time
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()  # the others do not wait for each other
    if rank == 1:
        time.sleep(600)
    comm.allreduce(x)
"""
    result = run(3, script(tmp_path, begin + rest), env=FULL if own else {**FULL, "MPICOLL_TIMEOUT": "3"})
    assert result.code != 0
    assert "rank 1 did not come within 3 s, to allreduce sum of 4 float64" in result.output


def test_a_call_that_does_not_block_and_to_which_a_rank_does_not_come(tmp_path: Path) -> None:
    """A thread waits for the other ranks in MPI, so the job cannot end as others do."""
    program = """
    import time
    from pathlib import Path
    import numpy as np
    import mpicoll

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
    result = run(2, script(tmp_path, program), env=FULL)
    assert result.code != 0
    assert "not in time" in result.output
    assert "rank 0 has waited for 13 s in making a communicator for the calls that do not block" in result.output


def test_a_rank_that_has_ended(tmp_path: Path) -> None:
    """Nobody waits for the timeout: it will not come."""
    program = BEGIN.format(arguments="") + "    if rank != 1:\n        comm.allreduce(x)\n"
    result = run(3, script(tmp_path, program), env={"MPICOLL_CHECK": "full", "MPICOLL_TIMEOUT": "600"})
    assert result.code != 0
    assert "mpicoll: a rank has finished, and others wait for it. The job ends" in result.output
    assert re.search(r"^  rank 1 +has not arrived and has ended its program$", result.output, re.MULTILINE)
    assert "TimeoutError" not in result.output


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MPICOLL_CHECK", "some", "mpicoll: MPICOLL_CHECK: expected off, watch, full; given 'some'"),
        ("MPICOLL_CHECK_NAN", "yes", "mpicoll: MPICOLL_CHECK_NAN: expected 0 or 1, or nothing; given 'yes'"),
        ("MPICOLL_TIMEOUT", "-1", "mpicoll: MPICOLL_TIMEOUT: expected seconds, more than 0; given '-1'"),
        ("MPICOLL_TIMEOUT", "soon", "mpicoll: MPICOLL_TIMEOUT: expected seconds, more than 0; given 'soon'"),
    ],
)
def test_nonsense_is_refused_at_the_start(variable: str, value: str, words: str, tmp_path: Path) -> None:
    result = run(2, script(tmp_path, "import mpicoll; mpicoll.Communicator(); print('made')"), env={variable: value})
    assert result.code != 0
    assert words in result.output
    assert "made" not in result.output.splitlines()

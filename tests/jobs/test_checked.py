"""MPICOLL_CHECK=full in jobs: right programs go on as before, and wrong ones end with a table of who called what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import REPOSITORY, half, run, script

FULL = {"MPICOLL_CHECK": "full", "MPICOLL_TIMEOUT": "3"}
BEGIN = """
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("mpicoll"{arguments})
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4)
    dist.all_reduce(x)
    assert (x == size).all()
"""
WRONG = {
    "op": ("dist.all_reduce(x, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)", "sum of 4", "max of 4"),
    "root": ("dist.broadcast(x, min(rank, 1))", "root 1", "root 0"),
    "async": ("dist.all_reduce(x if rank else x[:3], async_op=True).wait()", "sum of 4", "sum of 3"),
    "collective": ("dist.barrier() if rank == 2 else dist.all_reduce(x)", "allreduce sum of 4", "barrier"),
}


@pytest.mark.parametrize("example", half(["ddp.py", "fsdp.py"]))
def test_programs_of_torch_go_on(example: str) -> None:
    result = run(2, str(REPOSITORY / "examples" / example), env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert result.code == 0, result.output


@pytest.mark.parametrize("wrong", half(WRONG))
def test_different_calls_end_the_job(wrong: str, tmp_path: Path) -> None:
    call, one, other = WRONG[wrong]
    program = script(tmp_path, BEGIN.format(arguments="") + f"    {call}\n    dist.barrier()\n")
    result = run(3, program, env=FULL)
    assert result.code != 0
    assert "the ranks made different calls:" in result.output
    assert one in result.output
    assert other in result.output


@pytest.mark.parametrize("way", ["the group's timeout", "the environment's"])
def test_a_rank_that_does_not_come(way: str, tmp_path: Path) -> None:
    """It computes on. The others name it, and the job ends."""
    own = way == "the group's timeout"
    begin = BEGIN.format(arguments=", timeout=timedelta(seconds=3)" if own else "")
    rest = """
    import time

    if rank == 1:
        time.sleep(600)
    dist.all_reduce(x)
"""
    result = run(3, script(tmp_path, begin + rest), env={"MPICOLL_CHECK": "full"} if own else FULL)
    assert result.code != 0
    assert "rank 1 did not come within 3 s, to allreduce sum of 4 float32" in result.output


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (
            "MPICOLL_CHECK",
            "some",
            "mpicoll: MPICOLL_CHECK: expected off, watch, full; given 'some'",
        ),
        ("MPICOLL_CHECK_NAN", "yes", "mpicoll: MPICOLL_CHECK_NAN: expected 0 or 1; given 'yes'"),
        ("MPICOLL_TIMEOUT", "-1", "mpicoll: MPICOLL_TIMEOUT: expected seconds, more than 0; given '-1'"),
        ("MPICOLL_TIMEOUT", "soon", "mpicoll: MPICOLL_TIMEOUT: expected seconds, more than 0; given 'soon'"),
    ],
)
def test_nonsense_is_refused_at_the_start(variable: str, value: str, words: str, tmp_path: Path) -> None:
    result = run(2, script(tmp_path, "import mpicoll; mpicoll.Communicator(); print('made')"), env={variable: value})
    assert result.code != 0
    assert words in result.output
    assert "made" not in result.output.splitlines()

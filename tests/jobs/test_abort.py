"""A group that is aborted in the middle of a collective, and a program that then ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import run, script

pytestmark = pytest.mark.usefixtures("usual_end")

PROGRAM = """
    import sys
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("mpicoll")
    group, x = dist.group.WORLD, torch.ones(1000)
    comes = sys.argv[1] == "comes"
    if dist.get_rank() == 0:
        works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
        while group.progress._waiting:
            time.sleep(0.01)
        time.sleep(0.3)  # the second one is in MPI, or about to be
        group.abort()
        for call in (works[1].wait, lambda: dist.all_reduce(x)):
            try:
                call()
            except RuntimeError as e:
                print(e, flush=True)
        if comes:
            group.progress._thread.join()  # until the other rank has come
    else:
        dist.all_reduce(x)
        if comes:
            dist.all_reduce(x)
        group.abort()
    print("the end", flush=True)
"""


@pytest.mark.parametrize("other", ["comes", "stays away"])
def test_a_program_ends_after_an_abort(other: str, tmp_path: Path) -> None:
    result = run(2, script(tmp_path, PROGRAM), other)
    assert result.output.count("the end") == 2, result.output
    assert "was aborted" in result.output, result.output
    said = result.output.count("was aborted in the middle of a collective, to which not all ranks have come")
    crashed = [word for word in ("Segmentation", "SIGSEGV", "signal 11", "Traceback") if word in result.output]
    assert not crashed, result.output
    assert (result.code == 0, said) == ((True, 0) if other == "comes" else (False, 1)), result.output

"""One rank of the suite: notes each test's outcome in the folder MPICOLL_OUTCOMES, as tests/conftest.py does."""

from __future__ import annotations

import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

from mpi4py import MPI

after, words = sys.argv[1], sys.argv[2:]
world = MPI.COMM_WORLD
outcomes = Path(os.environ["MPICOLL_OUTCOMES"])
folder = outcomes.parent
(folder / "test_dir").mkdir(exist_ok=True)
PATIENCE = 15.0
"""Seconds that a rank whose test failed waits for the others."""
# What torch's module asks of the environment as it is imported.
os.environ |= {"BACKEND": "mpicoll", "WORLD_SIZE": str(world.size), "RANK": str(world.rank), "TEMP_DIR": str(folder)}
os.environ.setdefault("INIT_METHOD", "mpi://")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed, common_utils  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

from tests.torch_suite.known import KNOWN  # noqa: E402


# Tests that are marked to be skipped, because the backend's name is not on a list of torch's, run all the same.
class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """torch's tests, for which somebody else starts the ranks."""

    def _barrier(self, *args: Any, **kwargs: Any) -> None:
        world.Barrier()


def execute(name: str) -> str:
    """The outcome of this test; raises what it raises."""
    test = Suite(name)
    test.rank, test.file_name = world.rank, str(folder / "rendezvous")
    dist.init_process_group("mpicoll", "mpi://", timeout=timedelta(seconds=100))
    common_utils.set_rng_seed()
    world.Barrier()
    try:
        getattr(test, name)()
    except unittest.SkipTest:
        return "skipped"
    except SystemExit as e:  # how torch's decorators skip in a process of one rank
        if e.code not in {skip.exit_code for skip in common_distributed.TEST_SKIPS.values()}:
            raise
        return "skipped"
    return "passed"


def together(failed: bool) -> None:
    """Go on when all ranks have come. If this one failed, others may wait for it where they never end: it ends the
    job."""
    deadline = time.monotonic() + PATIENCE
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.001)
        if failed and time.monotonic() > deadline:
            world.Abort(1)


def main() -> None:
    names = [name for name in unittest.TestLoader().getTestCaseNames(Suite) if all(word in name for word in words)]
    names = names if words else [name for name in names if name not in KNOWN]
    with open(outcomes / str(world.rank), "w", buffering=1) as notes:
        for name in names:
            if name <= after and after != "-":
                continue
            print("running", name, file=notes)
            outcome = "failed"
            try:
                outcome = execute(name)
            except BaseException:
                sys.stderr.write(f"{name}, rank {world.rank}: {traceback.format_exc()}")
                sys.stderr.flush()
            together(outcome == "failed")
            if dist.is_initialized():
                dist.destroy_process_group()
            print(outcome, name, file=notes)


main()

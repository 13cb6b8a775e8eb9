"""Long random jobs whose ranks are stopped and continued from outside: nothing is wrong, and nobody raises an alarm.

``make soak`` makes many calls, ``make test`` fewer. The printed seed repeats the calls, though not when ranks stop."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time

import pytest

from tests.jobs.jobs import REPOSITORY, started, until

pytestmark = pytest.mark.first_mpi

SOAKED = str(REPOSITORY / "tests" / "jobs" / "soaked.py")
CALLS = int(os.environ.get("MPICOLL_SOAK", "1500"))


@pytest.mark.slow
def test_soak() -> None:
    seed = int(os.environ.get("MPICOLL_SEED", random.randrange(1 << 30)))
    print(f"{CALLS} calls, MPICOLL_SEED = {seed}")
    rng = random.Random(seed)
    ranks = rng.randint(2, 5)
    argv = [sys.executable, "-m", "mpicoll", "run", "-n", str(ranks), SOAKED, str(CALLS), str(seed)]
    longest = 0.0  # stop of a rank, in seconds: a busy machine may keep this process from continuing it
    with started(*argv, env={"MPICOLL_TIMEOUT": "30"}) as (it, output):

        def pids() -> list[int]:
            return [int(pid) for pid in re.findall(r"rank \d is (\d+)\n", output.read_text())]

        until(lambda: len(pids()) == ranks or it.process.poll() is not None, "the ranks begin", output)
        known = pids()
        assert len(known) == ranks, output.read_text()
        while it.process.poll() is None:  # it is bounded by the timeout of its calls
            time.sleep(rng.uniform(0, 2))
            stopped = rng.choice(known)
            began = time.monotonic()
            try:
                os.kill(stopped, signal.SIGSTOP)
                time.sleep(rng.choice([0.01, 0.3, 3]))
                os.kill(stopped, signal.SIGCONT)
            except ProcessLookupError:
                break
            longest = max(longest, time.monotonic() - began)
        code, said = it.process.wait(), output.read_text()
    print(f"{said}The longest stop took {longest:.1f} s")
    assert code == 0
    assert said.count("has 0 wrong results") == ranks
    assert "mpicoll: " not in said

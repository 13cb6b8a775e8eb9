"""Jobs that are right, whatever it looks like: they are left alone, also where a watcher fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import half, plainly, run, script
from tests.jobs.programs import sound

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [each.__name__ for each in half(sound.RIGHT, on_both=sound.ON_BOTH)])
def test_no_false_alarm(name: str) -> None:
    result = run(3, sound.__file__, name).good()
    assert result.output.split() == ["went", "on"] * 3, result.output


BREAKS = {
    "the coordinator": "from mpicoll.supervise.coordinator import Coordinator\nCoordinator._check = None",
    "an agent": "from mpicoll.supervise.agent import Agent\nif launched_rank() == 1: Agent._check_coordinator = None",
    "the network": """
from dataclasses import replace
from mpicoll.supervise import watch

listen = watch.listen

def nowhere(*given):
    sock, place = listen(*given)
    return sock, replace(place, port=1)

watch.listen = nowhere
""",
}
USES = """
comm = mpicoll.Communicator()
for _ in range(5):
    comm.allreduce(np.ones(3))
    time.sleep(0.4 * comm.rank)
print("went on")
"""


@pytest.mark.parametrize("what", half(BREAKS))
def test_a_watcher_that_fails_ends_nothing(what: str, tmp_path: Path) -> None:
    """The program goes on, and is told that nobody watches any more. The coordinator is in rank 0 here."""
    begin = "import time\nimport numpy as np\nfrom mpicoll.launch.launch_env import launched_rank\nimport mpicoll\n"
    result = plainly(3, script(tmp_path, begin + BREAKS[what] + USES)).good()
    assert result.output.count("went on") == 3, result.output
    assert result.output.count("mpicoll: ") == 1, result.output
    assert "may wait forever" in result.output, result.output


def test_first_ranks_that_differ(tmp_path: Path) -> None:
    """Each communicator is compared by a first rank of some communicator. Ranks leave all of them at once."""
    program = """
        import mpicoll
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        halves = mpicoll.Communicator(world.Split(world.rank // 2))
        for comm in (halves, mpicoll.Communicator(world.Split(0, -world.rank)), mpicoll.Communicator()):
            comm.barrier()
        print("went on")
    """
    result = run(3, script(tmp_path, program)).good()
    assert result.output.count("went on") == 3

"""What this machine and this job will do: facts of every rank, what is wrong with them, and what to do about it.

Each rank's process gathers facts and starts a child that becomes the rank. Rank 0 gets the facts of all, and judges
them. If MPI ends the child, or does not let it go on, this process is still there, and says so.
"""

from __future__ import annotations

import os

from mpicoll.doctor.facts import Facts
from mpicoll.doctor.report import Report
from mpicoll.doctor.rules import judge
from mpicoll.errors import LaunchError
from mpicoll.launch.launch_env import RANK
from mpicoll.machine.system import mark
from mpicoll.probe.child import GRACE, Child

SECONDS = 600.0
"""How long MPI may take to start, and then to bring all facts to rank 0. Big jobs take minutes to start. The other
ranks wait for ``GRACE`` longer: if they ended first, the launcher might end rank 0 before it reports."""
QUESTION = "mpicoll.doctor.rank:all_facts"
_SEE = "See the other problems, and what MPI has printed"
_TO_START = f"{_SEE}. `mpicoll run` takes the launcher of the MPI that mpi4py loads"
_TO_EXCHANGE = f"{_SEE}. Does MPI take a network that connects the nodes? See `ip -brief address`"


def examine() -> Report | None:
    """The report on this process and on all ranks that were started with it. None in all processes but one, which is to
    print it. Raises LaunchError in another process if MPI fails there alone."""
    facts = Facts()
    reports = facts.start.number in (0, None)
    try:
        everyone = _of_all_ranks(facts, SECONDS if reports else SECONDS + GRACE)
    except LaunchError as error:  # MPI has failed in the child
        if not reports:
            raise
        return judge([facts], error)
    if isinstance(everyone, LaunchError):
        return judge([facts], everyone) if reports else None
    return None if everyone is None else judge(everyone)


def _of_all_ranks(facts: Facts, seconds: float) -> list[Facts] | LaunchError | None:
    """The facts of all ranks if the child becomes rank 0, and None otherwise, or an error if it must not use MPI.
    Raises LaunchError if it ends, or if it does not answer for so many seconds."""
    environment = {k: v for k, v in os.environ.items() if k != RANK}
    answer: list[Facts] | LaunchError | None = None
    with Child(QUESTION, facts, mark(), environment=environment) as rank:
        for what, remedy in (("MPI had started", _TO_START), ("the ranks had exchanged messages", _TO_EXCHANGE)):
            try:
                answer = rank.answer(seconds)
            except LaunchError as error:
                raise LaunchError(f"{error.problem} before {what}", remedy) from None
            if isinstance(answer, LaunchError):
                break
    return answer

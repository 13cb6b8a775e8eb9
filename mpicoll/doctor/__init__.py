"""What this machine and this job will do: facts of every rank, what is wrong with them, and what to do about it.

Each rank's process gathers facts and starts a child that becomes the rank. Rank 0 gets the facts of all, and judges
them. If MPI ends the child, or does not let it go on, this process is still there, and says so."""

from __future__ import annotations

import os

from mpicoll.doctor.facts import Facts
from mpicoll.doctor.report import Report
from mpicoll.doctor.rules import judge
from mpicoll.errors import LaunchError
from mpicoll.launch.launch_env import RANK
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
    print it. Raises LaunchError in another process if MPI ends its child, or does not let it go on."""
    facts = Facts()
    reports = facts.start.number in (0, None)
    environment = {k: v for k, v in os.environ.items() if k != RANK}
    everyone = None
    with Child(QUESTION, facts, environment=environment) as rank:
        for what, remedy in (("MPI had started", _TO_START), ("the ranks had exchanged messages", _TO_EXCHANGE)):
            try:
                everyone = rank.answer(SECONDS if reports else SECONDS + GRACE)
            except LaunchError as error:
                failure = LaunchError(f"{error.problem} before {what}", remedy)
                if reports:
                    return judge([facts], failure)
                raise failure from None
            if isinstance(everyone, LaunchError):
                return judge([facts], everyone) if reports else None
    return None if everyone is None else judge(everyone)

"""What comes before each call with ``check="full"``: all ranks say what they call, before any data moves.

Each rank sends every other rank one number, a hash of its call. Where all numbers are equal, the call goes
on. Where they differ, the ranks tell each other the descriptions of their calls, and MismatchError is raised on all of
them. Where a number does not come in time, TimeoutError names the rank that is missing."""

from __future__ import annotations

from functools import partial
from typing import Any

from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan
from mpicoll.errors import ArgumentError, MismatchError, TimeoutError
from mpicoll.fabrics.fabric import Fabric
from mpicoll.supervise.record import Record
from mpicoll.units import alike, named, named_in

Counts = tuple[int, ...] | None


class Agreement:
    """Agrees on each call among the ranks of a fabric, which have ``timeout`` seconds to come to it. Collective."""

    def __init__(self, fabric: Fabric, timeout: float) -> None:
        self._fabric, self.timeout, self._allgather = fabric, timeout, fabric.bounded_allgather()
        self._in_job = fabric.in_world()

    def before(self, call: Call, record: Record) -> list[Plan]:
        agree = partial(self.agree, call.operation, record)
        if call.extent_is_common:
            return [agree]
        return [agree, partial(self._compare_counts, call.operation, call.sendcounts, call.recvcounts)]

    def _compare_counts(self, operation: str, sendcounts: Counts, recvcounts: Counts) -> None:
        """Raise MismatchError if a rank has other elements for its peer in an alltoallv than the peer expects."""
        counts = self._fabric.allgather((sendcounts, recvcounts))
        for sender, (sends, _) in enumerate(counts):
            for receiver, (_, expects) in enumerate(counts):
                if sends[receiver] != expects[sender]:
                    has = f"{operation} with {sends[receiver]} elements for rank {receiver}"
                    expected = f"{operation} that expects {expects[sender]} elements from rank {sender}"
                    both = f"{has}, and {expected}"
                    differ = {sender: has, receiver: both if sender == receiver else expected}
                    raise MismatchError(operation, differ, self._in_job)

    def agree(self, operation: str, record: Record) -> None:
        """Return if all ranks call this, and raise on all of them if they do not."""
        fabric, description = self._fabric, record.description
        number = int.from_bytes(record.digest) >> 1
        numbers = self._allgather(number, self.timeout)
        if numbers.count(number) == fabric.size:
            return
        missing = [rank for rank, said in enumerate(numbers) if said is None]
        if missing == [fabric.rank]:
            raise TimeoutError(f"{operation}: this rank came when others had given up, to {description}")
        if missing:
            who = named_in(self._in_job, missing)
            raise TimeoutError(f"{operation}: {who} did not come within {self.timeout:g} s, to {description}")
        raise MismatchError(operation, dict(enumerate(fabric.allgather(description))), self._in_job)


def same_settings(fabric: Fabric, **settings: Any) -> None:
    """Raise ArgumentError on all ranks unless they give a new communicator the same settings. Collective.

    A rank that agrees on calls would wait for one that does not, and ranks that choose different algorithms, too."""
    all_given = fabric.allgather(settings)
    for name in settings:
        given = [each[name] for each in all_given]
        if len({*given}) > 1:
            said = ", ".join(f"{each!r} on {named(ranks)}" for each, ranks in alike(dict(enumerate(given))).items())
            raise ArgumentError("Communicator", name, "the same on all ranks", said)

"""All ranks say what they call, before any data moves: ``check="full"``.

Each rank sends every other rank one number, a hash of its call. Where all numbers are equal, the call goes on. Where
they differ, the ranks tell each other their calls in words, and MismatchError is raised on all of them. Where a number
does not come in time, TimeoutError names the rank that is missing.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b

from mpicoll.calls.call import Call
from mpicoll.calls.plan import Plan, sequence
from mpicoll.errors import MismatchError, TimeoutError
from mpicoll.fabrics.fabric import Fabric

__all__ = ["Agreement", "described"]

Counts = tuple[int, ...] | None


class Agreement:
    """Agrees on each call among the ranks of a fabric, which have ``timeout`` seconds to come to it. Collective."""

    def __init__(self, fabric: Fabric, timeout: float) -> None:
        fabric.prepare_to_tell()
        self._fabric, self.timeout = fabric, timeout

    def before(self, call: Call, algorithm: str | None, plan: Plan) -> Plan:
        """The plan, with an agreement on its call before it."""
        words = described(call, algorithm, self._fabric.size)
        agree = partial(self._agree, call.operation, words, _hash(words))
        if call.extent_is_common:
            return sequence(agree, plan)
        return sequence(agree, partial(self._compare_counts, call.operation, call.sendcounts, call.recvcounts), plan)

    def agree(self, operation: str, words: str) -> None:
        """Return if all ranks call this, and raise on all of them if they do not."""
        self._agree(operation, words, _hash(words))

    def _compare_counts(self, operation: str, sendcounts: Counts, recvcounts: Counts) -> None:
        """Of an alltoallv: what each rank has for another is as long as what that one expects."""
        counts = self._fabric.allgather((sendcounts, recvcounts))
        for sender, (sends, _) in enumerate(counts):
            for receiver, (_, expects) in enumerate(counts):
                if sends[receiver] != expects[sender]:
                    has = f"{operation} with {sends[receiver]} elements for rank {receiver}"
                    expected = f"{operation} that expects {expects[sender]} elements from rank {sender}"
                    both = f"{has}, and {expected}"
                    raise MismatchError(operation, {sender: has, receiver: both if sender == receiver else expected})

    def _agree(self, operation: str, words: str, number: int) -> None:
        fabric = self._fabric
        numbers = fabric.tell(number, self.timeout)
        if numbers.count(number) == fabric.size:
            return
        missing = [rank for rank, said in enumerate(numbers) if said is None]
        if missing == [fabric.rank]:
            raise TimeoutError(f"{operation}: other ranks gave up before all had come, to {words}")
        if missing:
            who = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            raise TimeoutError(f"{operation}: {who} did not come within {self.timeout:g} s, to {words}")
        raise MismatchError(operation, dict(enumerate(fabric.allgather(words))))


def described(call: Call, algorithm: str | None, size: int) -> str:
    """What all ranks of a call must say alike: operation, reduction, elements, dtype, sort of memory, root, algorithm
    and counts."""
    words = [call.operation]
    if call.reduction is not None:
        words.append(call.reduction.op.name)
    memory = call.send or call.recv
    if memory is not None:
        words.append(f"of {call.extent(size)} {memory.dtype}" if call.extent_is_common else f"of {memory.dtype}")
        if memory.device != "cpu":  # a call on a device's memory is cut in another way
            words.append(f"on {memory.device.partition(':')[0]}")
    if call.uneven and call.extent_is_common:
        words.append(f"counts {list(call.sendcounts or call.recvcounts or ())}")
    if call.collective.rooted:
        words.append(f"root {call.root}")
    if algorithm is not None:
        words.append(f"algorithm {algorithm}")
    return " ".join(words)


def _hash(words: str) -> int:
    """A number of 63 bits."""
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest()) >> 1

"""Proves the schedules of all ranks: runs them on symbols, under the hardest conditions that an MPI library may make.

A symbol is the *ordered* expression tree of what a block holds. Equal trees have the same number, so comparing them is
fast. A proof shows that

- every rank ends with exactly the contributions that the collective means: none is missing, and none is there twice;
- every message meets a receive of blocks of the same sizes, and no message or receive is left over;
- nothing deadlocks, even if every message waits for its receive (rendezvous);
- within a step no action reads or writes what another one writes, and nothing is read that was never written;
- this also holds in place, where INPUT and OUTPUT are one memory; and INPUT itself is never written;
- in an allreduce all ranks compute the same tree for each block, so that their results are equal bit for bit;
- no rank leaves a barrier before it has heard, directly or through others, that every rank has entered.

The n-th message from one rank to another meets the n-th receive there, as both schedules name them. So the order in
which ranks proceed decides neither which message meets which receive, nor what it carries. One order proves it for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SPACES, Blocks, Copy, Message, RecvReduce, Schedule, Send, Space
from mpicoll.analysis.proof.rules import Rules, each, first, read_by, shown, target
from mpicoll.errors import ScheduleError

NOTHING = -1  # stands for a symbol where nothing was written
STALE = -2  # stands for a symbol of INPUT after the same block of OUTPUT was written. In place, INPUT has lost it.
_OVERWRITTEN = (
    "after the same block of output was written: wrong in place "
    "(to go on from what the rank has so far, read output; to keep the input, receive into scratch)"
)

MOST_OF_A_TREE = 60  # how many characters of a tree are shown


class Symbols:
    """What blocks hold, as expression trees, each with a number. A leaf is what one rank gives: the numbers below
    ``leaves``. A node is two trees, combined in their order. Equal trees have the same number."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._known: dict[tuple[int, int], int] = {}
        self._parts: list[tuple[int, int]] = []
        self._ranks: list[int] = []
        self._depth: list[int] = []

    def combined(self, a: int, b: int) -> int:
        """The tree of ``a op b``. Raises ValueError if that counts a rank twice."""
        found = self._known.get((a, b))
        if found is not None:
            return found
        of_a, of_b = self.ranks(a), self.ranks(b)
        if of_a & of_b:
            raise ValueError(f"counts rank {lowest(of_a & of_b)} twice")
        self._parts.append((a, b))
        self._ranks.append(of_a | of_b)
        self._depth.append(1 + max(self.depth(a), self.depth(b)))
        found = self._known[a, b] = self.leaves + len(self._parts) - 1
        return found

    def parts(self, symbol: int) -> tuple[int, int] | None:
        """The two trees that were combined, in their order, or None for a leaf."""
        return None if symbol < self.leaves else self._parts[symbol - self.leaves]

    def ranks(self, symbol: int) -> int:
        """The ranks whose contributions the tree holds, as the bits of an int."""
        return 1 << symbol if symbol < self.leaves else self._ranks[symbol - self.leaves]

    def depth(self, symbol: int) -> int:
        """How often the deepest leaf of the tree was combined. A reduction in 16 bits rounds it as often."""
        return 0 if symbol < self.leaves else self._depth[symbol - self.leaves]

    def shown(self, symbol: int) -> str:
        """The tree as text, such as ((0+1)+2). A leaf is its rank."""
        text: list[str] = []
        left: list[int | str] = [symbol]
        while left:
            top = left.pop()
            both = None if isinstance(top, str) else self.parts(top)
            if both is None:
                text.append(str(top))
            else:
                left += [")", both[1], "+", both[0], "("]
        return "".join(text)


def lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


@dataclass(frozen=True)
class Proof:
    """What a proof found. ``results[rank][block]`` is the symbol of a block of the rank's result, negative if it has no
    such block. The number of a leaf is the rank that gave it, and in an alltoall rank * size + block."""

    symbols: Symbols
    results: tuple[Sequence[int], ...]
    messages: int

    @property
    def depth(self) -> int:
        """How often a contribution is combined at most. A reduction in 16 bits rounds it as often."""
        return max((self.symbols.depth(s) for result in self.results for s in set(result)), default=0)


class Listener:
    """Is told what the ranks do, in an order in which they may do it. After a fault, the other ranks go on."""

    def begins(self, rank: int) -> None:
        """The rank begins its next step."""

    def copies(self, rank: int, action: Copy) -> None:
        """The rank has copied blocks."""

    def posts(self, rank: int, action: Message) -> None:
        """The rank is ready for its end of a message of its step."""

    def carries(self, source: int, send: Send, to: int, receive: Message) -> None:
        """A message has arrived."""


def verify(
    collective: str, root: int, schedules: Sequence[Schedule], uneven: bool = False, listener: Listener | None = None
) -> Proof:
    """Prove the schedules of all ranks. With ``uneven``, prove also that they serve the v-variant of the collective,
    where the block of each rank, and in an alltoall of each pair, has its own size. The ``listener`` is told what the
    ranks do.

    Raises ScheduleError, which names the rank, the step (from 0) and the block of the first fault. This is the fault of
    the earliest step, and among those the one of the lowest rank."""
    return _Proving(collective, root, schedules, uneven, listener or Listener()).run()


_Posted = tuple[Message, list[int]]
"""One end of a message, and the symbols that it reads on its own rank. Nothing else in its step writes them."""


class _Rank:
    """The state of a rank: its step, and the symbol of each block in each space."""

    __slots__ = ("heard", "hears", "holds", "left", "rank", "step", "steps", "wants", "writable")

    def __init__(self, rank: int, schedule: Schedule, wants: range) -> None:
        self.rank, self.steps, self.wants = rank, schedule.steps, wants
        self.writable = wants  # the blocks of OUTPUT that the rank may write
        self.holds: dict[Space, list[int]] = {s: [NOTHING] * schedule.blocks for s in SPACES}
        self.heard = 1 << rank  # the ranks that this rank had heard of before its present step, as the bits of an int
        self.hears = 0
        self.step = -1
        self.left = 0  # the number of messages of the present step that are not done


class _Proving:
    def __init__(
        self, collective: str, root: int, schedules: Sequence[Schedule], uneven: bool, listener: Listener
    ) -> None:
        self.listener = listener
        self.table, self.size, self.root = COLLECTIVES[collective], len(schedules), root
        self.what = f"{collective} {schedules[0].algorithm} of {self.size} ranks" + f", root {root}" * self.table.rooted
        self.check_blocks(schedules)
        self.alike = self.table.reduces and self.table.elementwise and not (self.table.rooted or self.table.prefix)
        self.rules = Rules(self.table, self.size, schedules[0].blocks, uneven)
        self.symbols = Symbols(self.size * self.size if self.rules.pairs else self.size)
        self.messages = 0
        self.posted: dict[tuple[int, int], deque[_Posted]] = {}
        """For each pair of ranks, the sends that wait for receives, or the receives that wait for sends."""
        self.faults: list[ScheduleError] = []
        self.ranks = [self.beginning(rank, schedule) for rank, schedule in enumerate(schedules)]
        self.ready = deque(self.ranks)

    def beginning(self, rank: int, schedule: Schedule) -> _Rank:
        it = _Rank(rank, schedule, self.table.wants(rank, self.size, self.root, schedule.blocks))
        given = it.holds[INPUT]
        if self.table.in_x:  # the root's output is its input, and may be read-only
            given = it.holds[OUTPUT]
            it.writable = range(0) if rank == self.root else it.wants
        for b in self.table.has(rank, self.size, self.root, schedule.blocks):
            given[b] = self.leaf(rank, b)
        return it

    def leaf(self, rank: int, block: int) -> int:
        """The symbol of a block that the rank gives. Only where blocks belong to pairs may a block change its number.
        Then its symbol also tells which block it is."""
        return rank * self.size + block if self.rules.pairs else rank

    def fail(self, it: _Rank, block: int | None, problem: str) -> NoReturn:
        """Raise the fault of the rank, in its present step unless it has ended."""
        raise ScheduleError(self.what, it.rank, it.step if it.step < len(it.steps) else None, block, problem)

    def run(self) -> Proof:
        """Run all ranks. A rank at fault stops, and the others go on as far as they can. So the first fault does not
        depend on the order in which the ranks run."""
        while self.ready:
            it = self.ready.popleft()
            try:
                self.begin_step(it)
            except ScheduleError as fault:
                self.faults.append(fault)
        if self.faults:
            raise min(self.faults, key=lambda fault: (fault.step, fault.rank))
        self.check_ended()
        for it in self.ranks:
            self.check_result(it)
        results = tuple(it.holds[OUTPUT] for it in self.ranks)
        return Proof(self.symbols, results, self.messages)

    # -- what ranks do --------------------------------------------------------------------------------------------

    def begin_step(self, it: _Rank) -> None:
        """End the step of the rank, and begin its next one."""
        it.heard |= it.hears
        if it.step >= 0 and not self.rules.pairs:
            for action in it.steps[it.step]:
                if not isinstance(action, Send) and action.into == OUTPUT:
                    for r in target(action):
                        it.holds[INPUT][r.start : r.stop] = [STALE] * len(r)
        it.step += 1
        if it.step == len(it.steps):
            return
        step = it.steps[it.step]
        self.listener.begins(it.rank)
        if problem := self.rules.problem(it.rank, it.writable, step):
            self.fail(it, *problem)
        messages: list[_Posted] = []
        for action in step:
            space = read_by(action)
            values = [] if space is None else self.read(it, space, action.blocks)
            if isinstance(action, Copy):
                self.write(it, action.into, target(action), values)
                self.listener.copies(it.rank, action)
            else:
                messages.append((action, values))
        it.left = len(messages)
        if not messages:
            self.ready.append(it)
        for message in messages:
            self.post(it, message)

    def post(self, it: _Rank, message: _Posted) -> None:
        """Carry the message out if its other end waits already. Otherwise this end waits."""
        action = message[0]
        self.listener.posts(it.rank, action)
        sends = isinstance(action, Send)
        pair = (it.rank, action.peer) if sends else (action.peer, it.rank)
        waiting = self.posted.get(pair)
        if waiting is None:
            self.posted[pair] = deque((message,))
            return
        if isinstance(waiting[0][0], Send) == sends:
            waiting.append(message)
            return
        other = waiting.popleft()
        if not waiting:
            del self.posted[pair]
        (send, values), (receive, mine) = (message, other) if sends else (other, message)
        source, to = self.ranks[pair[0]], self.ranks[pair[1]]
        self.end_message(source)
        try:
            self.take(source, to, send, values, receive, mine)
        except ScheduleError as fault:
            self.faults.append(fault)
        else:
            self.end_message(to)

    def take(
        self, source: _Rank, to: _Rank, send: Message, values: list[int], receive: Message, mine: list[int]
    ) -> None:
        assert isinstance(send, Send)
        assert not isinstance(receive, Send)
        if not self.rules.fits(source.rank, send.from_, send.blocks, to.rank, receive.into, receive.blocks):
            problem = f"takes blocks {shown(receive.blocks)} from rank {source.rank}, which sends {shown(send.blocks)}"
            self.fail(to, first(receive.blocks), f"{problem} in its step {source.step}")
        if isinstance(receive, RecvReduce):
            operands = zip(mine, values, strict=True) if receive.mine_first else zip(values, mine, strict=True)
            values = []
            try:
                for a, b in operands:
                    values.append(self.symbols.combined(a, b))
            except ValueError as e:
                self.fail(to, [*each(receive.blocks)][len(values)], f"what it takes from rank {source.rank} {e}")
        self.write(to, receive.into, receive.blocks, values)
        to.hears |= source.heard
        self.messages += 1
        self.listener.carries(source.rank, send, to.rank, receive)

    def end_message(self, it: _Rank) -> None:
        it.left -= 1
        if it.left == 0:
            self.ready.append(it)

    def read(self, it: _Rank, space: Space, blocks: Blocks) -> list[int]:
        cells = it.holds[space]
        values = [value for r in blocks for value in cells[r.start : r.stop]]
        if values and min(values) < 0:
            block = next(b for b in each(blocks) if cells[b] < 0)
            stale = cells[block] == STALE
            why = _OVERWRITTEN if stale else "which does not hold it"
            self.fail(it, block, f"reads {space}, {why}")
        return values

    def write(self, it: _Rank, space: Space, blocks: Blocks, values: list[int]) -> None:
        cells, done = it.holds[space], 0
        for r in blocks:
            cells[r.start : r.stop] = values[done : done + len(r)]
            done += len(r)

    # -- what must hold -------------------------------------------------------------------------------------------

    def check_blocks(self, schedules: Sequence[Schedule]) -> None:
        """Check that all ranks cut the vector into the same number of blocks, and into some."""
        for rank, schedule in enumerate(schedules):
            problem = None
            if schedule.blocks != schedules[0].blocks:
                problem = f"cuts the vector into {schedule.blocks} blocks, rank 0 into {schedules[0].blocks}"
            elif self.table.moves and (not isinstance(schedule.blocks, int) or schedule.blocks < 1):
                problem = f"cuts the vector into {schedule.blocks} blocks, not at least 1"
            if problem:
                raise ScheduleError(self.what, rank, None, None, problem)

    def check_ended(self) -> None:
        """Check that no rank waits, and that none has left a barrier early."""
        for it in sorted(self.ranks, key=lambda it: (it.step, it.rank)):
            for action in it.steps[it.step] if it.step < len(it.steps) else ():
                if isinstance(action, Copy):
                    continue
                sends = isinstance(action, Send)
                waiting = self.posted.get((it.rank, action.peer) if sends else (action.peer, it.rank), ())
                if any(other is action for other, _ in waiting):
                    wait = f"rank {action.peer} to receive" if sends else f"a message from rank {action.peer}"
                    self.fail(it, first(action.blocks), f"waits forever for {wait}")
        everyone = (1 << self.size) - 1
        for it in () if self.table.moves else self.ranks:
            if it.heard != everyone:
                self.fail(it, None, f"leaves without having heard of rank {lowest(everyone & ~it.heard)}")

    def check_result(self, it: _Rank) -> None:
        """Check that each block of the result of the rank is what the collective means."""
        found, of_0 = it.holds[OUTPUT], self.ranks[0].holds[OUTPUT]
        for b in it.wants:
            if found[b] < 0:
                self.fail(it, b, "ends without it")
            ranks, block = self.table.source(it.rank, self.size, self.root, b)
            if self.table.reduces:
                expected = (1 << ranks.stop) - (1 << ranks.start)
                if wrong := self.symbols.ranks(found[b]) ^ expected:
                    verb = "without" if expected & wrong else "with"
                    self.fail(it, b, f"ends {verb} the contribution of rank {lowest(wrong)}")
            elif found[b] != self.leaf(ranks.start, block):
                giver, given = divmod(found[b], self.size) if self.rules.pairs else (found[b], b)
                self.fail(it, b, f"ends with block {given} of rank {giver}, not {block} of {ranks.start}")
            if self.alike and found[b] != of_0[b]:
                most, trees = MOST_OF_A_TREE, [self.symbols.shown(symbol) for symbol in (found[b], of_0[b])]
                mine, other = (tree if len(tree) <= most else tree[:most] + "…" for tree in trees)
                self.fail(it, b, f"combines in another order than rank 0: {mine}, not {other}")

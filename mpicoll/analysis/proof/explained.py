"""What ranks do where a proof has found a fault, and the lines of the program that say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from linecache import getline
from typing import NamedTuple

from mpicoll.algorithms import Algorithm
from mpicoll.algorithms.steps import Action, Copy, Message, Place, RecvReduce, Schedule, Send
from mpicoll.analysis.proof.rules import shown, target
from mpicoll.errors import ScheduleError
from mpicoll.units import line_named

MOST_ACTIONS = 4  # if a step has more actions, only those on the block at fault are shown


class End(NamedTuple):
    """An action of the rank at fault. ``other`` is what meets it at the other end, with its step there, if anything."""

    rank: int
    step: int
    action: Action
    other: tuple[int, Message] | None

    @property
    def peer(self) -> int | None:
        """The other rank; None for a copy, and where the action names no other rank."""
        return None if isinstance(self.action, Copy) or self.action.peer == self.rank else self.action.peer


def explained(
    fault: ScheduleError, schedules: Sequence[Schedule], algorithm: Algorithm, places: Sequence[Place]
) -> ScheduleError:
    """The fault with more lines: the step of the rank at fault, and for each message in it what its partner does.
    ``places`` are those of all ranks."""
    if fault.rank is None or fault.step is None:
        return fault

    def told(rank: int, step: int, actions: Sequence[Action]) -> Iterator[str]:
        words = ", ".join(map(_words, actions))
        yield f"rank {rank}, step {step}" + f": {words}" * bool(words) + _where(algorithm, places[rank], step)

    ends = at_fault(fault, schedules)
    lines = [*told(fault.rank, fault.step, [end.action for end in ends])]
    for end in ends:
        if end.other is not None and end.peer is not None:
            lines += told(end.peer, end.other[0], (end.other[1],))
        elif end.peer in range(len(schedules)):
            verb = "receives from" if isinstance(end.action, Send) else "sends to"
            lines.append(f"rank {end.peer}: has no message left that it {verb} rank {end.rank}")
    return ScheduleError(fault.what, fault.rank, fault.step, fault.block, fault.problem, tuple(lines))


def at_fault(fault: ScheduleError, schedules: Sequence[Schedule]) -> Sequence[End]:
    """The actions of a fault that names a step: all of a short step, else those that nobody answers, or those of the
    block. None if the step holds what is no action."""
    assert fault.rank is not None
    assert fault.step is not None
    step = schedules[fault.rank].steps[fault.step]
    if not isinstance(step, tuple) or not all(map(_is_whole, step)):
        return ()
    ends = [end_of(schedules, fault.rank, fault.step, action) for action in step]
    if len(ends) <= MOST_ACTIONS:
        return ends
    alone = [end for end in ends if end.other is None and not isinstance(end.action, Copy)]
    of_block = [end for end in ends if touches(end.action, fault.block)]
    return (alone or of_block)[:MOST_ACTIONS]


def touches(action: Action, block: int | None) -> bool:
    """Whether the action reads or writes the block; None stands for any block."""
    to = target(action) if isinstance(action, Copy) else ()
    return block is None or any(block in run for run in (*action.blocks, *to))


def end_of(schedules: Sequence[Schedule], rank: int, step: int, action: Action) -> End:
    """The action, and the other end of its message: the n-th send meets the n-th receive."""
    alone = End(rank, step, action, None)
    if isinstance(action, Copy) or alone.peer not in range(len(schedules)):
        return alone
    sends = isinstance(action, Send)
    mine, theirs = _messages(schedules[rank], action.peer, sends), _messages(schedules[action.peer], rank, not sends)
    both = zip_longest(mine, theirs)
    return alone._replace(other=next((o for own, o in both if own and own[0] == step and own[1] is action), None))


def _is_whole(action: object) -> bool:
    """Whether it is an action whose blocks and peer are what their types say."""
    if not isinstance(action, Action):
        return False
    blocks: list[object] = [action.blocks, target(action) if isinstance(action, Copy) else ()]
    peer = 0 if isinstance(action, Copy) else action.peer
    return isinstance(peer, int) and all(isinstance(b, tuple) and all(isinstance(r, range) for r in b) for b in blocks)


def _messages(schedule: Schedule, peer: int, sends: bool) -> Iterator[tuple[int, Message]]:
    """The sends to the peer, or the receives from it, with the numbers of their steps."""
    for number, step in enumerate(schedule.steps):
        for action in step if isinstance(step, tuple) else ():
            if not _is_whole(action) or isinstance(action, Copy):
                continue
            if action.peer == peer and isinstance(action, Send) == sends:
                yield number, action


def _words(action: Action) -> str:
    """The action as a program writes it, but for its blocks: its ranks and spaces."""
    said = [f"blocks {shown(action.blocks)}" if each is action.blocks else str(each) for each in action]
    return f"{type(action).__name__}({', '.join(said[: 4 if isinstance(action, RecvReduce) else 3])})"


def _where(algorithm: Algorithm, place: Place, step: int) -> str:
    """The file and line of the ``yield`` that gives the step; empty where the function is no generator."""
    steps = iter(algorithm.steps(place))
    for _ in islice(steps, step + 1):
        pass
    inner = steps
    while getattr(inner, "gi_yieldfrom", None) is not None:
        inner = inner.gi_yieldfrom  # type: ignore[attr-defined]
    frame = getattr(inner, "gi_frame", None)
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = getline(file, line).strip()
    return f", at {line_named(file, line)}" + f": {text}" * bool(text)

"""What ranks do where a proof has found a fault, and the lines of the program that say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from linecache import getline
from pathlib import Path

from mpicoll.algorithms.registry import Algorithm
from mpicoll.analysis.proof.rules import shown, target
from mpicoll.errors import ScheduleError
from mpicoll.schedule import Action, Copy, Place, Recv, RecvReduce, Schedule, Send

__all__ = ["explained"]

MOST_ACTIONS = 4
"""Of a step with more actions, only those of the block at fault are told."""


def explained(fault: ScheduleError, algorithm: Algorithm, size: int, root: int, segments: int) -> ScheduleError:
    """The fault with more lines: the step of the rank at fault, and for each message in it what its partner does."""
    if fault.rank is None or fault.step is None:
        return fault
    schedules = [algorithm.schedule(rank, size, root, segments) for rank in range(size)]

    def told(rank: int, step: int, actions: Sequence[Action]) -> Iterator[str]:
        place = Place(rank, size, root, segments)
        yield f"rank {rank}, step {step}: {', '.join(map(_words, actions))}{_where(algorithm, place, step)}"

    rank, step = fault.rank, fault.step
    found = schedules[rank].steps[step]
    if not isinstance(found, tuple) or not all(isinstance(action, Action) for action in found):
        return fault  # the fault says what it is instead
    ends = {
        a: _other_end(schedules, rank, step, a) for a in found if not isinstance(a, Copy) and _is_other(a, rank, size)
    }
    at_fault = _at_fault(found, fault.block, [action for action, end in ends.items() if end is None])
    lines = [*told(rank, step, at_fault)]
    for action in at_fault:
        if action not in ends or isinstance(action, Copy):
            continue
        end = ends[action]
        if end is None:
            verb = "receives from" if isinstance(action, Send) else "sends to"
            lines.append(f"rank {action.peer}: has no message left that it {verb} rank {rank}")
        else:
            lines += told(action.peer, end[0], (end[1],))
    return ScheduleError(fault.what, rank, step, fault.block, fault.problem, tuple(lines))


def _is_other(action: Send | Recv | RecvReduce, rank: int, size: int) -> bool:
    return action.peer in range(size) and action.peer != rank


def _at_fault(step: Sequence[Action], block: int | None, alone: Sequence[Action]) -> Sequence[Action]:
    """The actions that are told: all of a short step, else those that nobody answers, or those of the block."""
    if len(step) <= MOST_ACTIONS:
        return step
    of_block = [a for a in step if block is None or any(block in r for r in (*a.blocks, *_to(a)))]
    return (alone or of_block)[:MOST_ACTIONS]


def _to(action: Action) -> tuple[range, ...]:
    return target(action) if isinstance(action, Copy) else ()


def _other_end(schedules: Sequence[Schedule], rank: int, step: int, action: Action) -> tuple[int, Action] | None:
    """The partner's step and action at the other end of the message: the n-th send meets the n-th receive."""
    assert not isinstance(action, Copy)
    sends = isinstance(action, Send)
    earlier = 0
    for number, mine in _messages(schedules[rank], action.peer, sends):
        if number == step and mine is action:
            break
        earlier += 1
    return next(islice(_messages(schedules[action.peer], rank, not sends), earlier, None), None)


def _messages(schedule: Schedule, peer: int, sends: bool) -> Iterator[tuple[int, Send | Recv | RecvReduce]]:
    """The sends to the peer, or the receives from it, with the numbers of their steps."""
    for number, step in enumerate(schedule.steps):
        for action in step if isinstance(step, tuple) else ():
            if not isinstance(action, Copy) and action.peer == peer and isinstance(action, Send) == sends:
                yield number, action


def _words(action: Action) -> str:
    """The action as a program writes it, but for its blocks."""
    blocks = f"blocks {shown(action.blocks)}"
    match action:
        case Send():
            return f"Send({action.peer}, {blocks}, {action.from_})"
        case Recv():
            return f"Recv({action.peer}, {blocks}, {action.into})"
        case RecvReduce():
            return f"RecvReduce({action.peer}, {blocks}, {action.mine}, {action.into})"
        case _:
            return f"Copy({blocks}, {action.from_}, {action.into})"


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
    return f", at {Path(file).name}:{line}" + f": {text}" * bool(text)

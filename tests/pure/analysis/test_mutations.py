"""Schedules broken on purpose: whatever changes a result, or hangs, the verifier must reject."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Action, Blocks, Copy, Recv, RecvReduce, Schedule, Send
from mpicoll.analysis.proof.cases import prove
from mpicoll.analysis.proof.verify import verify
from mpicoll.errors import ScheduleError
from tests.pure.analysis.executor import misbehaves

SIZES = (2, 3, 5, 8)
Steps = list[list[Action]]
OF_STEPS = (
    "drop a step", "repeat a step", "swap steps", "join steps", "split a step", "drop an action", "repeat an action"
)  # fmt: skip
OF_ACTIONS = "peer", "moved blocks", "fewer blocks", "more blocks", "space", "order", "reduces or not"
KINDS = (*OF_STEPS, *OF_ACTIONS)


def change_steps(draw: random.Random, kind: str, steps: Steps) -> None:
    i = draw.choice([i for i, step in enumerate(steps) if step])
    step, two = steps[i], slice(i, i + 2)
    match kind:
        case "drop a step":
            del steps[i]
        case "repeat a step":
            steps.insert(i, list(step))
        case "swap steps":
            steps[two] = steps[two][::-1]
        case "join steps":
            steps[two] = [[action for each in steps[two] for action in each]]
        case "split a step":
            steps[i : i + 1] = [[action] for action in draw.sample(step, len(step))]
        case "drop an action":
            del step[draw.randrange(len(step))]
        case "repeat an action":
            step.append(draw.choice(step))


def changed(draw: random.Random, kind: str, action: Action, size: int, blocks: int) -> Action | None:
    """The action with such a change. None if it has no such thing."""

    def moved(runs: Blocks) -> Blocks:
        by = draw.choice((1, -1))
        return tuple(range(r.start + by, r.stop + by) for r in runs)

    extra, field = draw.randrange(max(1, blocks)), draw.choice(("from_", "into", "mine"))
    space: Any = {field: draw.choice((INPUT, OUTPUT, SCRATCH))}
    match kind, action:
        case "peer", Send() | Recv() | RecvReduce():
            return action._replace(peer=draw.randrange(size))
        case "moved blocks", Copy(to=to) if to and draw.random() < 0.5:
            return action._replace(to=moved(to))
        case "moved blocks", _:
            return action._replace(blocks=moved(action.blocks))
        case "fewer blocks", _:
            return action._replace(blocks=action.blocks[1:])
        case "more blocks", _:
            return action._replace(blocks=(*action.blocks, range(extra, extra + 1)))
        case "space", _ if field in action._fields:
            return action._replace(**space)
        case "order", RecvReduce():
            return action._replace(mine_first=not action.mine_first)
        case "reduces or not", Recv(peer, of, into):
            return RecvReduce(peer, of, into, into, True)
        case "reduces or not", RecvReduce(peer, of, _, into, _):
            return Recv(peer, of, into)
    return None


def mutate(draw: random.Random, kind: str, steps: Steps, size: int, blocks: int) -> None:
    """Change the steps of one rank, unless they have nothing of that kind."""
    if kind in OF_STEPS:
        return change_steps(draw, kind, steps)
    actions = [(i, j, action) for i, step in enumerate(steps) for j, action in enumerate(step)]
    for i, j, action in draw.sample(actions, len(actions)):
        other = changed(draw, kind, action, size, blocks)
        if other is not None:
            steps[i][j] = other
            return None
    return None


def mutant(draw: random.Random, schedules: list[Schedule], kind: str) -> list[Schedule]:
    """The schedules with a change on one rank, or, now and then, the same kind of change on two."""
    broken = list(schedules)
    busy = [r for r, s in enumerate(schedules) if any(s.steps)]
    for rank in draw.sample(busy, min(len(busy), draw.choice((1, 1, 2)))):
        s = broken[rank]
        steps = [list(step) for step in s.steps]
        mutate(draw, kind, steps, len(schedules), s.blocks)
        broken[rank] = Schedule(s.collective, s.algorithm, s.blocks, tuple(map(tuple, steps)))
    return broken


def mutants(algorithm: Algorithm, size: int) -> Counter[str]:
    """Break the algorithm at this size; what became of it."""
    name = f"{algorithm.collective} {algorithm.name} {size}"
    draw = random.Random(name)
    root = draw.randrange(size) if COLLECTIVES[algorithm.collective].rooted else 0
    segments = 3 if algorithm.pipelined else 1
    schedules = [algorithm.schedule(r, size, root, segments) for r in range(size)]
    assert misbehaves(schedules, root, algorithm.uneven, seed=size) is None, name
    found: Counter[str] = Counter()
    for i in range(5 * len(KINDS)):
        kind = KINDS[i % len(KINDS)]
        broken = mutant(draw, schedules, kind)
        if broken == schedules:
            continue
        harm = misbehaves(broken, root, algorithm.uneven, seed=i)
        try:
            verify(algorithm.collective, root, broken, algorithm.uneven)
            rejected = False
        except ScheduleError:
            rejected = True
        assert rejected or harm is None, f"{name}, {kind}, number {i}: proved, but {harm}"
        found[f"{'harmful' if harm else 'harmless'}, {'rejected' if rejected else 'proved'}"] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*algorithms()], ids=lambda a: f"{a.collective}-{a.name}")
def test_what_breaks_an_algorithm_is_rejected(algorithm: Algorithm) -> None:
    found: Counter[str] = Counter()
    for size in SIZES:
        if not algorithm.declines(size, 0):
            prove(algorithm, size)
            found += mutants(algorithm, size)
    assert found["harmful, rejected"] >= 100

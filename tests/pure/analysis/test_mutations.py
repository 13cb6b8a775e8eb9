"""Schedules broken on purpose: whatever changes a result, or hangs, the verifier must reject."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Action, Recv, RecvReduce, Schedule
from mpicoll.analysis.proof.cases import prove
from mpicoll.analysis.proof.verify import verify
from mpicoll.errors import ScheduleError
from tests.pure.analysis.executor import misbehaves

SIZES = (2, 3, 5, 8)
EACH = 5 * 14
"""Mutants of an algorithm at one size."""

Steps = list[list[Action]]


def of_steps(draw: random.Random, steps: Steps) -> None:
    """Leave a step out, or make it twice; swap, join or split steps."""
    i = draw.choice([i for i, step in enumerate(steps) if step])
    j = draw.randrange(max(1, len(steps) - 1))
    parts = [[action] for action in draw.sample(steps[i], len(steps[i]))]
    match draw.randrange(5):
        case 0:
            del steps[i]
        case 1:
            steps.insert(i, list(steps[i]))
        case 2:
            steps[j : j + 2] = steps[j : j + 2][::-1]
        case 3:
            steps[j : j + 2] = [[action for step in steps[j : j + 2] for action in step]]
        case 4:
            steps[i : i + 1] = parts


def of_actions(draw: random.Random, steps: Steps) -> None:
    """Leave an action out, or make it twice."""
    step = draw.choice([step for step in steps if step])
    if draw.random() < 0.5:
        del step[draw.randrange(len(step))]
    else:
        step.append(draw.choice(step))


def changed(draw: random.Random, action: Action, size: int, blocks: int) -> Action:
    """The action with another value in one of its fields, or as another kind of receive."""
    fields = [field for field in action._fields if getattr(action, field) is not None]
    field = draw.choice([*fields, "blocks", "kind"])
    match field, action:
        case "kind", Recv(peer, runs, into):
            return RecvReduce(peer, runs, into, into, True)
        case "kind", RecvReduce(peer, runs, _, into, _):
            return Recv(peer, runs, into)
        case "kind", _:
            return action
    extra, by = draw.randrange(max(1, blocks)), draw.choice((1, -1))
    old = getattr(action, field)
    new: Any
    match field:
        case "peer":
            new = draw.randrange(size)
        case "blocks" | "to":
            moved = tuple(range(run.start + by, run.stop + by) for run in old)
            new = draw.choice((moved, moved, old[1:], (*old, range(extra, extra + 1))))
        case "mine_first":
            new = not old
        case _:
            new = draw.choice((INPUT, OUTPUT, SCRATCH))
    return action._replace(**{field: new})


def of_fields(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    step = draw.choice([step for step in steps if step])
    i = draw.randrange(len(step))
    step[i] = changed(draw, step[i], size, blocks)


def mutant(draw: random.Random, schedules: list[Schedule], kind: int) -> list[Schedule]:
    """The schedules with a change on one rank, or, now and then, the same kind of change on two."""
    broken = list(schedules)
    busy = [r for r, s in enumerate(schedules) if any(s.steps)]
    for rank in draw.sample(busy, min(len(busy), draw.choice((1, 1, 2)))):
        s = broken[rank]
        steps = [list(step) for step in s.steps]
        if kind < 5:
            of_steps(draw, steps)
        elif kind < 8:
            of_actions(draw, steps)
        else:
            of_fields(draw, steps, len(schedules), s.blocks)
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
    for i in range(EACH):
        broken = mutant(draw, schedules, i % 14)
        if broken == schedules:
            continue
        harm = misbehaves(broken, root, algorithm.uneven, seed=i)
        try:
            verify(algorithm.collective, root, broken, algorithm.uneven)
            rejected = False
        except ScheduleError:
            rejected = True
        assert rejected or harm is None, f"{name}, number {i}: proved, but {harm}"
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
    assert found["harmful, rejected"] >= 60

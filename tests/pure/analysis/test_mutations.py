"""Schedules broken on purpose: whatever changes a result, or hangs, the verifier must reject."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.steps import INPUT, OUTPUT, SCRATCH, Action, Blocks, Copy, Recv, RecvReduce, Schedule
from mpicoll.analysis.proof.cases import prove
from mpicoll.analysis.proof.verify import verify
from mpicoll.errors import ScheduleError
from tests.pure.analysis.executor import misbehaves

SIZES = (2, 3, 5, 8)
EACH = 5 * 14
"""Mutants of an algorithm at one size."""

Steps = list[list[Action]]
Mutation = Callable[[random.Random, Steps, int, int], None]
"""Changes the steps of one rank: at this size, with so many blocks."""


def step_of(draw: random.Random, steps: Steps) -> int:
    return draw.choice([i for i, step in enumerate(steps) if step])


def changed(draw: random.Random, steps: Steps, change: Callable[[Action], Action | None]) -> None:
    """Replace one action that ``change`` gives another for; leave the steps as they are where it gives none."""
    found = [(i, j, c) for i, step in enumerate(steps) for j, a in enumerate(step) if (c := change(a)) is not None]
    if found:
        i, j, action = draw.choice(found)
        steps[i][j] = action


def drop_step(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    del steps[step_of(draw, steps)]


def duplicate_step(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    i = step_of(draw, steps)
    steps.insert(i, list(steps[i]))


def swap_steps(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    if len(steps) > 1:
        i = draw.randrange(len(steps) - 1)
        steps[i : i + 2] = steps[i + 1], steps[i]


def join_steps(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    if len(steps) > 1:
        i = draw.randrange(len(steps) - 1)
        steps[i : i + 2] = [steps[i] + steps[i + 1]]


def split_step(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    i = step_of(draw, steps)
    parts = [[action] for action in steps[i]]
    draw.shuffle(parts)
    steps[i : i + 1] = parts


def drop_action(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    step = steps[step_of(draw, steps)]
    del step[draw.randrange(len(step))]


def duplicate_action(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    step = steps[step_of(draw, steps)]
    step.append(draw.choice(step))


def redirect(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    to = draw.randrange(size)
    changed(draw, steps, lambda a: None if isinstance(a, Copy) else a._replace(peer=to))


def wrong_block(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    by = draw.choice((1, -1))

    def moved(runs: Blocks) -> Blocks:
        return tuple(range(r.start + by, r.stop + by) for r in runs)

    def change(a: Action) -> Action | None:
        if isinstance(a, Copy) and a.to and draw.random() < 0.5:
            return a._replace(to=moved(a.to))
        return a._replace(blocks=moved(a.blocks))

    changed(draw, steps, change)


def fewer_blocks(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    changed(draw, steps, lambda a: a._replace(blocks=a.blocks[1:]))


def more_blocks(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    extra = draw.randrange(max(1, blocks))
    changed(draw, steps, lambda a: a._replace(blocks=(*a.blocks, range(extra, extra + 1))))


def wrong_space(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    space = draw.choice((INPUT, OUTPUT, SCRATCH))
    change: dict[str, Any] = {draw.choice(("from_", "into", "mine")): space}
    changed(draw, steps, lambda a: a._replace(**change) if set(change) <= set(a._fields) else None)


def flip(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    changed(draw, steps, lambda a: a._replace(mine_first=not a.mine_first) if isinstance(a, RecvReduce) else None)


def reduce_or_not(draw: random.Random, steps: Steps, size: int, blocks: int) -> None:
    def change(a: Action) -> Action | None:
        match a:
            case Recv(peer, blocks, into):
                return RecvReduce(peer, blocks, into, into, True)
            case RecvReduce(peer, blocks, _, into, _):
                return Recv(peer, blocks, into)
        return None

    changed(draw, steps, change)


MUTATIONS: tuple[Mutation, ...] = (
    drop_step, duplicate_step, swap_steps, join_steps, split_step, drop_action, duplicate_action, redirect,
    wrong_block, fewer_blocks, more_blocks, wrong_space, flip, reduce_or_not,
)  # fmt: skip


def mutant(draw: random.Random, schedules: list[Schedule], mutation: Mutation) -> list[Schedule]:
    """The schedules with a change on one rank, or, now and then, the same kind of change on two."""
    broken = list(schedules)
    busy = [r for r, s in enumerate(schedules) if any(s.steps)]
    for rank in draw.sample(busy, min(len(busy), draw.choice((1, 1, 2)))):
        s = broken[rank]
        steps = [list(step) for step in s.steps]
        mutation(draw, steps, len(schedules), s.blocks)
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
        mutation = MUTATIONS[i % len(MUTATIONS)]
        broken = mutant(draw, schedules, mutation)
        if broken == schedules:
            continue
        harm = misbehaves(broken, root, algorithm.uneven, seed=i)
        try:
            verify(algorithm.collective, root, broken, algorithm.uneven)
            rejected = False
        except ScheduleError:
            rejected = True
        assert rejected or harm is None, f"{name}, {mutation.__name__}, number {i}: proved, but {harm}"
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

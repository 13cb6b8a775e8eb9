"""The examples with ranks that are threads of this process. (Among ranks of MPI they run in
tests/torch/test_scenarios.py.)"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import mpicoll

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RANKS = range(4)
ROWS = [[1, 2], [3, 4], [5, 6], [7, 8]]


def printed(name: str, capsys: pytest.CaptureFixture[str], *args: Any) -> list[str]:
    """The lines that four threads print, sorted."""
    with mpicoll.threads(len(RANKS)) as ranks:
        assert ranks.run(import_module(name).main, *args) == [None] * len(RANKS)
    return sorted(capsys.readouterr().out.splitlines())


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(ROOT)


def test_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    expected = [f"rank {r}, {how}: {ROWS[r] if r else [16, 20]}" for r in RANKS for how in ("all to one", "tree")]
    assert printed("own_reduce", capsys) == expected


def test_all_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("butterfly", "naive", "ring", "tree")
    assert printed("own_all_reduce", capsys) == [f"rank {r}, {name}: [16, 20]" for r in RANKS for name in names]


def test_gather(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("own_gather", capsys)
    for name in ("naive", "tree", "all, naive", "all, tree", "all, ring"):
        for r in RANKS if name.startswith("all") else (0,):
            assert f"rank {r}, {name}: {ROWS}" in lines
    assert len(lines) == 5 * len(RANKS)


def test_broadcast(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(printed("own_broadcast", capsys)) == 3 * 5


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

"""NCCL as the benchmark calls it: what it is told, and how figures of a shared GPU are labelled, without NCCL."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpicoll.bench import backends, plot, records, table
from mpicoll.bench.backends import Unavailable
from mpicoll.bench.cases import Placement
from mpicoll.bench.records import Report, grouped, rated
from mpicoll.bench.session import Session
from mpicoll.bench.table import verdict
from tests.ranks.bench.test_output import lines, report, row

pytestmark = [pytest.mark.sizes(1), pytest.mark.any_mpi]

FULL = "GPU shared by 2 ranks: not NCCL's bandwidth"


class FakeTorch:
    """torch where there is a GPU, as far as a group is made. It keeps the environment in which that happens."""

    def __init__(self, version: tuple[int, ...]) -> None:
        self.cuda = SimpleNamespace(is_available=lambda: True, nccl=SimpleNamespace(version=lambda: version))
        self.distributed = SimpleNamespace(
            is_nccl_available=lambda: True, is_initialized=lambda: False, new_group=self.new_group
        )
        self.seen: dict[str, str] = {}

    def new_group(self, backend: str, timeout: object) -> str:
        assert backend == "nccl"
        self.seen = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
        return "a group"


def opened(monkeypatch: pytest.MonkeyPatch, sharing: int, version: tuple[int, ...] = (2, 30, 1)) -> dict[str, str]:
    """NCCL's settings when its group is made, in a session where so many ranks share a GPU."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    torch = FakeTorch(version)
    monkeypatch.setattr(backends, "torch_itself", lambda: torch)
    monkeypatch.setattr(backends, "distributed", lambda: torch.distributed)
    world = cast(Any, SimpleNamespace(rank=3))
    backends.open_nccl(Session(world, world, "cuda:0", sharing)).close()
    return torch.seen


def test_settings_for_a_shared_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(monkeypatch, sharing=1) == {}
    assert set(opened(monkeypatch, sharing=2)) == {"NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_MAX_CTAS"}
    older = opened(monkeypatch, sharing=4, version=(2, 27, 3))
    assert set(older) == {"NCCL_HOSTID"}
    assert older["NCCL_HOSTID"].endswith("3")


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "torch_itself", lambda: FakeTorch((2, 30)))
    world = cast(Any, SimpleNamespace(rank=0))
    with pytest.raises(Unavailable, match="--device cuda"):
        backends.open_nccl(Session(world, world, "cpu"))


def shared() -> Report:
    """An invented report of two ranks on one GPU. NCCL has the least times."""
    found = report()
    rows = [
        row(
            cast(Placement, it.placement),
            it.count,
            *(("nccl", [0.1]) if it.backend == "gloo" else (it.backend, it.times_us)),
            sharing=2,
        )
        for it in found.rows
    ]
    found.rows = [each for of_size in grouped(rows, "size").values() for each in rated(of_size, "mpicoll")]
    return found


def test_rows_of_a_shared_gpu_say_so(tmp_path: Path) -> None:
    found = shared()
    for rows in lines(found):
        expected = FULL if rows[0].backend == "nccl" else "GPU shared by 2 ranks"
        assert table.line(rows).endswith(f"({expected})")
    records.write_json(found, tmp_path / "f.json")
    for it in json.loads((tmp_path / "f.json").read_text())["rows"]:
        assert it["caveat"] == (FULL if it["backend"] == "nccl" else "GPU shared by 2 ranks")
        assert it["comparable"] == (it["backend"] != "nccl")
        assert it["backend"] != "nccl" or not it["ratio"]
    said = " ".join(verdict(found.rows).replace("#", "").split())
    assert said.startswith("allreduce: the fastest is mpicoll")
    assert said.endswith(f"nccl is not compared: {FULL}")
    assert {each.ratio for each in rated(found.rows, "nccl")} == {None}
    pytest.importorskip("matplotlib")
    plot.draw(found, tmp_path / "f.svg")
    text = (tmp_path / "f.svg").read_text().replace("&#x27;", "'").replace("&apos;", "'")
    assert f">nccl ({FULL})<" in text
    assert ">mpi (GPU shared by 2 ranks)<" in text

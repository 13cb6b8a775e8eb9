"""NCCL as the benchmark calls it: what it is told, how its log is read, and how figures of a shared GPU are labelled.

Nothing here calls NCCL. The lines of logs have the forms of NCCL's user guide (Troubleshooting, Logging) and of public
logs; that this project's GPU would print them is not verified."""

from __future__ import annotations

import csv
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
LOG = """\
node-01:1897:1897 [0] NCCL INFO NCCL version 2.30.3+cuda13.0
node-01:1897:1910 [0] NCCL INFO Channel 00/02 : 0 1
node-01:1897:1910 [0] NCCL INFO Connected to proxy localRank 0 -> connection 0x7f
node-01:1897:1910 [0] NCCL INFO Channel {}
node-01:1897:1910 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        ("00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM"),
        ("01/0 : 8[0] -> 15[7] via P2P/IPC/read", "P2P/IPC"),
        ("00/0 : 7[7] -> 6[6] via P2P/direct pointer/read", "P2P/direct pointer"),
        ("00 : 1[c3000] -> 0[3000] via SHM/direct/direct comm 0x557519a97630 nRanks 02", "SHM/direct"),
        ("14/0 : 15[7] -> 0[0] [send] via NET/Socket/0", "NET/Socket"),
        ("03/0 : 13[5] -> 4[4] [receive] via NET/IB/3", "NET/IB"),
        ("07/0 : 0[0] -> 2[0] [receive] via NET/IB/0(1)/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("00 : 1[101d0] -> 8[101c0] [send] via NET/AWS Libfabric/0/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
    ],
)
def test_a_line_of_the_log(line: str, transport: str) -> None:
    assert backends.transports(LOG.format(line)) == [transport]


def test_the_log_goes_to_a_file_that_is_removed() -> None:
    environment: dict[str, str] = {}
    log = backends.Log(environment)
    assert environment["NCCL_DEBUG"] == "INFO"
    file = Path(environment["NCCL_DEBUG_FILE"])
    assert log.route() == "nccl"
    file.write_text(
        LOG.format("00/0 : 0[0] -> 1[1] via P2P/CUMEM") + LOG.format("00 : 1[1] -> 0[0] via SHM/direct/direct")
    )
    assert log.route() == "nccl over P2P/CUMEM and SHM/direct"
    log.remove()
    assert not file.exists()
    for given in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "/dev/null"}):  # a log of the user's own stays theirs
        environment = dict(given)
        assert "unknown" in backends.Log(environment).route()
        assert environment == given


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


LOGGING = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}


def test_settings_for_a_shared_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(opened(monkeypatch, sharing=1)) == LOGGING
    assert set(opened(monkeypatch, sharing=2)) - LOGGING == {"NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_MAX_CTAS"}
    older = opened(monkeypatch, sharing=4, version=(2, 27, 3))
    assert set(older) - LOGGING == {"NCCL_HOSTID"}
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
        assert all(table.line(rows, 7, form).endswith(f"({expected})") for form in ("short", "nccl"))
    records.write_json(found, tmp_path / "f.json")
    records.write_csv(found, tmp_path / "f.csv")
    written = json.loads((tmp_path / "f.json").read_text())["rows"]
    with (tmp_path / "f.csv").open(newline="") as f:
        written += [{**it, "comparable": it["comparable"] == "True"} for it in csv.DictReader(f)]
    for it in written:
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

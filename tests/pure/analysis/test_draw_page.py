"""Pages of algorithms: one file that needs nothing else, with the steps of the picture, and the fault where it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mpicoll.analysis.drawing.page import PLAYER, SCRIPTS, STYLE
from mpicoll.cli import main

Capture = pytest.CaptureFixture[str]

OWN = """
import mpicoll
from mpicoll.algorithms.steps import INPUT, OUTPUT, Recv, RecvReduce, Send, one

def star(at):
    if at.rank:
        yield (Send(0, one(0), INPUT),)
        yield (Recv(0, one(0), OUTPUT),)  # </script>
    else:
        mine = INPUT
        for peer in range(1, at.size):
            yield (RecvReduce(peer, one(0), mine, OUTPUT, mine_first=True),)
            mine = {then}
        yield tuple(Send(peer, one(0), OUTPUT) for peer in range(1, at.size) if peer != {forgotten})

mpicoll.register(mpicoll.Algorithm("allreduce", "star", star))
"""


def page(tmp_path: Path, *arguments: str, code: int) -> tuple[str, dict[str, Any]]:
    """What ``mpicoll draw`` writes, and the data in it."""
    file = tmp_path / "page.html"
    assert main(["draw", *arguments, "-o", str(file)]) == code
    text = file.read_text(encoding="utf-8")
    found = re.search(r"^const SCHEDULES = (.*);$", text, re.MULTILINE)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return text, data


def own(tmp_path: Path, then: str = "OUTPUT", forgotten: int = 0) -> str:
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("{then}", then).replace("{forgotten}", str(forgotten)))
    return str(file)


def test_a_page_is_the_player_and_one_schedule(tmp_path: Path) -> None:
    text, data = page(tmp_path, "allreduce", own(tmp_path), "-n", "3", code=0)
    for file in (*SCRIPTS, STYLE):
        assert (PLAYER / file).read_text() in text
    assert "<title>allreduce star, 3 ranks</title>" in text
    assert re.findall(r"""(?:src|href)\s*=\s*["']?\w+|https?://(?!www.w3.org/2000/svg)""", text) == []
    picture = data["pictures"]["allreduce"]["star"].pop("3")
    assert data["pictures"] == {"allreduce": {"star": {}}}
    assert "fault" not in picture
    assert [len(each["arrows"]) for each in picture["rounds"]] == [1, 1, 2]
    assert picture["rounds"][0]["arrows"] == [[[1], [0], "combines"]]
    times = [seconds for seconds, _ in picture["times"]]
    assert len(times) == len(data["sizes"])
    assert times == sorted(times)


def test_a_fault_is_marked_where_it_happens(tmp_path: Path, capsys: Capture) -> None:
    """Rank 0 combines its input twice, so it loses rank 1."""
    _, data = page(tmp_path, "allreduce", own(tmp_path, then="INPUT"), "-n", "3", code=1)
    picture = data["pictures"]["allreduce"]["star"]["3"]
    said = capsys.readouterr().err
    assert said == f"mpicoll: {picture['fault']['text']}\n"
    assert picture["fault"]["text"].startswith("allreduce star of 3 ranks: rank 0, step 1, block 0: reads input, after")
    assert picture["fault"]["rank"] == 0
    assert picture["strips"] == ["out", "in"]
    assert picture["fault"]["cells"] == [0, 1]  # of rank 0: the output that is lost, and the input that is read
    assert [each["arrows"] for each in picture["rounds"]] == [
        [[[3], [0], "combines"]],
        [[[5], [0], "combines", "wrong"]],
    ]
    assert "times" not in picture

"""The picture that moves shows the schedule that runs: what it shows at the end, and that each message arrives."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.pure.docs.scripts import script

moving_picture = script("moving_picture")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_file_is_up_to_date() -> None:
    """`make docs` writes it anew."""
    assert moving_picture.FILE.read_text() == moving_picture.moving("allreduce", "ring", 4)


@pytest.mark.parametrize(("collective", "algorithm", "size"), [("allreduce", "ring", 4), ("bcast", "binomial_tree", 5)])
def test_what_is_seen(collective: str, algorithm: str, size: int) -> None:
    root = ET.fromstring(moving_picture.moving(collective, algorithm, size))
    corners = {(int(each.get("x", "")), int(each.get("y", ""))) for each in root.findall(f"{SVG}rect")[1:]}
    assert len(corners) % size == 0
    messages = [group for group in root.findall(f"{SVG}g") if group.find(f"{SVG}animateTransform") is not None]
    assert messages
    for message in messages:
        way, block = message.find(f"{SVG}animateTransform"), message.find(f"{SVG}rect")
        assert way is not None
        assert block is not None
        right, down = map(int, way.get("values", "").split(";")[-1].split())
        at = int(float(block.get("x", ""))), int(block.get("y", ""))
        assert at in corners
        assert (at[0] + right, at[1] + down) in corners
        assert right != 0, "a message goes to another rank"
    for each in root.iter():
        if "keyTimes" in each.attrib:
            times = [float(time) for time in each.attrib["keyTimes"].split(";")]
            assert times == sorted(times)
            assert times[0] == 0 <= times[-1] <= 1
            assert len(times) == len(each.attrib["values"].split(";"))

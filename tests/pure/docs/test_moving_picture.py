"""The picture that moves shows the schedule that runs."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.pure.docs.scripts import script

moving_picture = script("moving_picture")
SVG = "{http://www.w3.org/2000/svg}"


def test_the_file_is_up_to_date_and_each_message_arrives() -> None:
    """`make docs` writes it anew."""
    text = moving_picture.moving("allreduce", "ring", 4)
    assert moving_picture.FILE.read_text() == text
    root = ET.fromstring(text)
    corners = {(int(each.get("x", "")), int(each.get("y", ""))) for each in root.findall(f"{SVG}rect")[1:]}
    messages = [group for group in root.findall(f"{SVG}g") if group.find(f"{SVG}animateTransform") is not None]
    assert len(messages) == 24
    for message in messages:
        way, block = message.find(f"{SVG}animateTransform"), message.find(f"{SVG}rect")
        assert way is not None
        assert block is not None
        right, down = map(int, way.get("values", "").split(";")[-1].split())
        at = int(float(block.get("x", ""))), int(block.get("y", ""))
        assert {at, (at[0] + right, at[1] + down)} <= corners
        assert right != 0, "a message goes to another rank"

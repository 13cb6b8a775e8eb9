"""Writes a picture as one HTML file, which needs nothing else: a browser plays it, round by round.

The manual has the same player. Its site takes the files that are named here.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

from mpicoll.algorithms import Algorithm
from mpicoll.analysis.drawing.picture import Picture
from mpicoll.analysis.drawing.steps import script, steps

PLAYER = Path(__file__).with_name("player")
"""The folder of the player's files."""
SCRIPTS = ("picture.js", "address.js", "drawing.js", "stage.js", "player.js")
"""In the order in which a page loads them, after the script with the data."""
STYLE = "player.css"


def save(picture: Picture, algorithm: Algorithm, root: int, of: str, file: Path) -> None:
    """Write the page of the picture. ``of`` says what it shows of the algorithm."""
    name = f"{algorithm.collective} {algorithm.name}"
    pictures = {algorithm.collective: {algorithm.name: {picture.ranks: steps(picture, algorithm, root)}}}
    scripts = [script(pictures), *((PLAYER / each).read_text(encoding="utf-8") for each in SCRIPTS)]
    page = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    text = page.substitute(
        title=escape(f"{name}, {of}"),
        name=escape(name),
        of=escape(of),
        style=(PLAYER / STYLE).read_text(encoding="utf-8"),
        script="".join(scripts),
    )
    file.write_text(text, encoding="utf-8")

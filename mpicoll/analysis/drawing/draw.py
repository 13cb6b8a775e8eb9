"""Draws an algorithm, or what a collective means, into a file: a picture, or a page that plays it. It shows which
message goes from which rank to which in each round, and what every rank holds before and after it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mpicoll.algorithms import Algorithm
from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.algorithms.registry import segments as segments_alone
from mpicoll.algorithms.steps import Nodes
from mpicoll.analysis.drawing import arrows, matrices, page, picture
from mpicoll.analysis.drawing.faults import located
from mpicoll.analysis.drawing.picture import MOST_RANKS
from mpicoll.analysis.drawing.trace import Tracing
from mpicoll.analysis.proof.cases import Case, check_segments, prove_schedules
from mpicoll.errors import ArgumentError, ScheduleError

PICTURES = (".svg", ".png")
FILES = (*PICTURES, ".html")
MOST_CELLS = 12_000
"""A picture of more cells is illegible."""


def draw(
    algorithm: Algorithm, size: int, file: Path, root: int = 0, segments: int | None = None, nodes: Nodes | None = None
) -> None:
    """Draw the algorithm among ``size`` ranks, which are on these ``nodes``, into an SVG, PNG or HTML file, by the
    ending of its name. HTML is a page that plays the algorithm in a browser.

    The algorithm is proved. If it is wrong, the drawing shows what happens until the fault, and marks the fault. After
    the file was written, ScheduleError is raised. Raises ArgumentError, which names the option of ``mpicoll draw`` that
    is wrong.
    """
    kind = file.suffix.lower()
    if kind not in FILES:
        raise ArgumentError("draw", "-o", f"a file whose name ends in {', '.join(FILES)}", repr(str(file)))
    nodes = nodes or usual_nodes(algorithm, size)
    found = pictured(algorithm, size, root, segments, nodes)
    rooted = f", root {root}" * COLLECTIVES[algorithm.collective].rooted
    cut = segments or usual_segments(algorithm)
    title = f"{size} ranks{rooted}" + f", {cut} segments" * algorithm.pipelined
    if nodes is not None:
        title += ", nodes " + " | ".join(" ".join(map(str, ranks)) for ranks in nodes.ranks)
    if kind in PICTURES:
        _save(found, f"{algorithm.collective} {algorithm.name}", title, file)
    else:
        page.save(found, algorithm, root, title, file)
    if found.fault is not None:
        raise found.fault


def draw_meaning(collective: str, size: int, file: Path, root: int = 0) -> None:
    """Draw what the ranks hold before and after a collective, as SVG or PNG."""
    rooted = f", root {root}" * COLLECTIVES[collective].rooted
    _save(picture.meaning(collective, size, root), collective, f"{size} ranks{rooted}", file)


def pictured(
    algorithm: Algorithm, size: int, root: int = 0, segments: int | None = None, nodes: Nodes | None = None
) -> picture.Picture:
    """What the drawing of the algorithm shows. It has a ``fault`` if the algorithm is wrong. Raises ArgumentError as
    ``draw`` does."""
    if not 2 <= size <= MOST_RANKS:
        raise ArgumentError("draw", "-n", f"2 to {MOST_RANKS} ranks", str(size))
    rooted = COLLECTIVES[algorithm.collective].rooted
    if not 0 <= root < (size if rooted else 1):
        expected = f"a rank, 0 to {size - 1}" if rooted else f"none, as no {algorithm.collective} has a root"
        raise ArgumentError("draw", "--root", expected, str(root))
    check_segments("draw", algorithm, segments)
    cut, nodes = segments or usual_segments(algorithm), nodes or usual_nodes(algorithm, size)
    schedules = [algorithm.schedule(rank, size, root, cut, nodes) for rank in range(size)]
    tracing = Tracing(algorithm.collective, size, root, schedules[0].blocks)
    fault = None
    try:
        prove_schedules(schedules, algorithm, Case(size, root, cut, nodes), tracing)
    except ScheduleError as error:
        fault = located(error, tracing, schedules)
    found = tracing.trace(fault.rounds if fault else tracing.rounds)
    cells = (found.rounds + 1) * size * found.blocks
    if cells > MOST_CELLS:
        options = "-n and --segments" if algorithm.pipelined else "-n"
        given = f"{size} ranks with {found.blocks} blocks each in {found.rounds} rounds: {cells} cells"
        raise ArgumentError("draw", options, f"a picture of at most {MOST_CELLS} cells", given)
    return picture.picture(found, size, root, fault)


def usual_nodes(algorithm: Algorithm, size: int) -> Nodes | None:
    """Two nodes with half of the ranks each, or None if the algorithm does not go by nodes."""
    return Nodes.block(size, 2) if algorithm.by_node else None


def usual_segments(algorithm: Algorithm) -> int:
    """The number of segments that shows how the algorithm pipelines them, or 1 if it does not."""
    if not algorithm.pipelined:
        return 1
    return 4 if algorithm.cut is segments_alone else 2


def _save(found: picture.Picture, name: str, of: str, file: Path) -> None:
    if find_spec("matplotlib") is None:
        given = "an environment without it"
        raise ArgumentError("draw", "-o", "matplotlib to be installed (pip install matplotlib)", given)
    drawing = arrows if arrows.height_of_ranks(found) <= arrows.TALLEST else matrices
    drawing.save(found, name, of, file)

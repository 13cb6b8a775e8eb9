"""Draws an algorithm, or what a collective means, as a picture or as a page that plays it: in a file or in a notebook.
It shows which message goes from which rank to which in each round, and what every rank holds before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES, canonical
from mpicoll.algorithms.steps import Nodes, Place, Steps
from mpicoll.algorithms.steps import segments as segments_alone
from mpicoll.analysis.drawing import arrows, matrices, page, picture
from mpicoll.analysis.drawing.picture import MOST_RANKS
from mpicoll.analysis.drawing.trace import Tracing, located
from mpicoll.analysis.proof.cases import Case, prove_schedules
from mpicoll.errors import ArgumentError, ScheduleError
from mpicoll.units import count

PICTURES = (".svg", ".png")
MOST_CELLS = 12_000  # a picture of more cells is illegible


@dataclass(frozen=True)
class Drawing:
    """What an algorithm does, round by round. In a notebook it shows itself: as the player, and as a picture where no
    script may run.

    ``fault`` is the error of an algorithm that is wrong: the drawing shows what happens up to there. It is None if the
    algorithm is right."""

    algorithm: Algorithm
    root: int
    title: str
    """What is drawn: the ranks, the root, the segments and the nodes."""
    picture: picture.Picture

    @property
    def fault(self) -> ScheduleError | None:
        return self.picture.fault

    def save(self, file: str | PathLike[str]) -> None:
        """Write an SVG, PNG or HTML file, by the ending of its name. HTML is a page that plays in a browser."""
        file = Path(file)
        kind = file.suffix.lower()
        if kind in PICTURES:
            _save(self.picture, self._name, self.title, file)
        elif kind == ".html":
            file.write_text(self._page(), encoding="utf-8")
        else:
            expected = f"a file whose name ends in {', '.join((*PICTURES, '.html'))}"
            raise ArgumentError("draw", "file", expected, repr(fspath(file)))

    def __repr__(self) -> str:
        rounds = count(len(self.picture.panels) - 1, "round")
        return f"<{self._name}, {self.title}: {f'wrong: {self.fault}' if self.fault else rounds}>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, as high as it is: its scripts and styles meet no other ones."""
        fits = "this.style.height = this.contentDocument.documentElement.scrollHeight + 'px'"
        looks = "width: 100%; height: 32rem; border: none"
        return f'<iframe srcdoc="{escape(self._page())}" style="{looks}" onload="{fits}"></iframe>'

    def _repr_svg_(self) -> str | None:
        if find_spec("matplotlib") is None:
            return None  # the player needs none
        with TemporaryDirectory() as folder:
            file = Path(folder, "drawing.svg")
            self.save(file)
            return file.read_text(encoding="utf-8")

    @property
    def _name(self) -> str:
        return f"{self.algorithm.collective} {self.algorithm.name}"

    def _page(self) -> str:
        return page.text(self.picture, self.algorithm, self.root, self.title)


def draw(
    collective: str,
    algorithm: str | Algorithm | Callable[[Place], Steps],
    ranks: int = 4,
    root: int = 0,
    segments: int | None = None,
    nodes: Sequence[int] | None = None,
) -> Drawing:
    """Draw an algorithm among some ``ranks``, and prove it. The result shows itself in a notebook, and has ``save``.

    ``algorithm`` is a name, an :class:`Algorithm`, or a function that yields the steps of a rank and leaves the vector
    whole. It need not be registered. ``segments`` cuts the vector of a pipelined algorithm. ``nodes`` has the number of
    each rank's node, for an algorithm that goes by nodes: two nodes, unless you say otherwise.

    A wrong algorithm is drawn up to its fault, which is red. The result's ``fault`` is the error. Raises ScheduleError
    if there is nothing to draw because the function itself fails."""
    found = _algorithm(collective, algorithm)
    where = Nodes.named(nodes) if isinstance(nodes, Sequence) else None
    if nodes is not None and not found.by_node:
        raise ArgumentError("draw", "nodes", f"none, as {found.name} does not go by nodes", repr(nodes))
    if nodes is not None and (where is None or where.size != ranks):
        raise ArgumentError("draw", "nodes", f"the node of each of {ranks} ranks", repr(nodes))
    try:
        picture = pictured(found, ranks, root, segments, where)
    except ScheduleError as fault:
        raise fault.with_traceback(None) from fault.__cause__  # mpicoll's own frames say nothing to who wrote it
    title = f"{ranks} ranks" + f", root {root}" * COLLECTIVES[found.collective].rooted
    title += f", {segments or usual_segments(found)} segments" * found.pipelined
    where = where or usual_nodes(found, ranks)
    if where is not None:
        title += ", nodes " + " | ".join(" ".join(map(str, each)) for each in where.ranks)
    return Drawing(found, root, title, picture)


def _algorithm(collective: str, given: str | Algorithm | Callable[[Place], Steps]) -> Algorithm:
    name = canonical(collective) if isinstance(collective, str) else None
    if name is None:
        raise ArgumentError("draw", "collective", "one of " + ", ".join(COLLECTIVES), repr(collective))
    if isinstance(given, str):
        known = {a.name: a for a in algorithms(name)}
        if given not in known:
            raise ArgumentError("draw", "algorithm", f"one of {', '.join(known)}", repr(given))
        return known[given]
    if isinstance(given, Algorithm):
        if given.collective != name:
            shown = f"{given.name}, which is for {given.collective}"
            raise ArgumentError("draw", "algorithm", f"one for {name}", shown)
        return given
    if not callable(given):
        expected = "a name, an Algorithm, or a function from a Place to steps"
        raise ArgumentError("draw", "algorithm", expected, repr(given))
    called = getattr(given, "__name__", "")
    return Algorithm(name, called if called.isidentifier() else "own", given)


def draw_meaning(collective: str, size: int, file: Path) -> None:
    """Draw what the ranks hold before and after a collective, as SVG or PNG. Rank 0 is the root, if it has one."""
    rooted = ", root 0" * COLLECTIVES[collective].rooted
    _save(picture.meaning(collective, size, 0), collective, f"{size} ranks{rooted}", file)


def pictured(
    algorithm: Algorithm, size: int, root: int = 0, segments: int | None = None, nodes: Nodes | None = None
) -> picture.Picture:
    """What the drawing shows, with a ``fault`` if the algorithm is wrong. Raises ArgumentError as ``draw`` does."""
    if type(size) is not int or not 2 <= size <= MOST_RANKS:
        raise ArgumentError("draw", "ranks", f"2 to {MOST_RANKS} ranks", repr(size))
    rooted = COLLECTIVES[algorithm.collective].rooted
    if type(root) is not int or not 0 <= root < (size if rooted else 1):
        expected = f"a rank, 0 to {size - 1}" if rooted else f"none, as no {algorithm.collective} has a root"
        raise ArgumentError("draw", "root", expected, repr(root))
    if segments is not None and (type(segments) is not int or segments < 1 or not algorithm.pipelined):
        expected = "a number, at least 1" if algorithm.pipelined else f"none, as {algorithm.name} is not pipelined"
        raise ArgumentError("draw", "segments", expected, repr(segments))
    cut, nodes = segments or usual_segments(algorithm), nodes or usual_nodes(algorithm, size)
    schedules = [algorithm.schedule(rank, size, root, cut, nodes) for rank in range(size)]
    tracing = Tracing(algorithm.collective, size, root, schedules[0].blocks)
    fault = None
    try:
        prove_schedules(schedules, algorithm, Case(size, root, cut, nodes), tracing)
    except ScheduleError as error:
        fault = located(error, tracing, schedules)
    rounds = fault.rounds if fault else tracing.rounds
    cells = (rounds + 1) * size * tracing.blocks
    if cells > MOST_CELLS:
        options = "ranks and segments" if algorithm.pipelined else "ranks"
        given = f"{size} ranks with {tracing.blocks} blocks each in {rounds} rounds: {cells} cells"
        raise ArgumentError("draw", options, f"a picture of at most {MOST_CELLS} cells", given)
    return picture.picture(tracing, fault)


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
        raise ArgumentError("draw", "file", "matplotlib to be installed (pip install matplotlib)", given)
    drawing = arrows if arrows.height_of_ranks(found) <= arrows.TALLEST else matrices
    drawing.save(found, name, of, file)

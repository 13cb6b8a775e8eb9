"""Writes docs/reference/algorithms.md and its pictures from the registry: ``python docs/draw_algorithms.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.analysis.drawing.draw import draw, draw_meaning, pictured
from mpicoll.analysis.proof.cases import prove
from mpicoll.collectives import COLLECTIVES, Collective

HERE = Path(__file__).parent / "reference"
RANKS, FOLDED_RANKS = 4, 5
MOST_ROUNDS = 10
"""An algorithm that takes more is drawn among fewer ranks."""

HEAD = """\
# Algorithms

What each collective means, and every algorithm that `algorithm=` takes for it besides the MPI library's own
(`native`) and `exchange`. This page is made by `make docs` from the code that runs: the pictures are drawn from the
schedules, and each is proved first. `mpicoll draw COLLECTIVE ALGORITHM -n RANKS -o FILE` draws another number of
ranks or another root, `mpicoll verify` repeats the proofs, `mpicoll simulate` costs the algorithms on a machine, and
[own_algorithm.md](../how-to/own_algorithm.md) shows how to add one.

**How to read a picture.** Time goes from left to right. A rank's vector is a column of cells, its blocks numbered
from above; a cell has the colours and the numbers of the ranks whose contributions it holds, 0…3 for 0 to 3, and Σ
when it holds all. Where everything comes from the root, in a bcast and a scatter, colours and numbers are those of
blocks; in an alltoall 0→2 is what rank 0 has for rank 2. An arrow is a message, with the numbers of its blocks beside
it; it ends in ⊕ where the message is combined with what the rank holds. A thick frame is what a round has changed. A
message's round is one more than the longest chain of messages that had to come before it; ranks do not wait for
rounds. The last column shows only what the collective is to leave there.

**How to read a cost.** Time among `p` ranks for a vector of `n` bytes (the longest that a rank gives or gets), in `s`
segments where the algorithm is pipelined. `a` is the time that every message takes, whatever its length, `b` that of
sending one byte, and `g` that of combining one. Where p is no power of two log2(p) is rounded up, or down where the
cost says what comes on top then.

**Rounding in 16 bits.** A message of float16 or bfloat16 values is one in 16 bits, so each combination on the way
rounds. What is stated is the largest number of roundings between an element of any rank and the result, as the proof
counts them; `exchange` combines in float32 and rounds once.
"""

MEANINGS = {
    "bcast": "Every rank gets the root's vector.",
    "reduce": "The root gets the sum (or another combination) of all ranks' vectors.",
    "allreduce": "Every rank gets the sum (or another combination) of all ranks' vectors, with equal bits.",
    "gather": "The root gets every rank's block.",
    "allgather": "Every rank gets every rank's block.",
    "scatter": "Every rank gets its block of the root's vector.",
    "reduce_scatter": "Every rank gets its block of the sum (or another combination) of all ranks' vectors.",
    "alltoall": "Every rank gets from every rank the block that is for it: a transposition.",
    "scan": "Every rank gets the sum (or another combination) of the vectors of the ranks up to itself.",
    "exscan": "Every rank gets the sum (or another combination) of the vectors of the ranks before it; rank 0 none.",
    "barrier": "No rank goes on before every rank has come. A cell shows of whom a rank has heard.",
}


def text() -> str:
    """The page."""
    return "\n".join([HEAD, *_contents(), *(line for table in COLLECTIVES.values() for line in _section(table))])


def build() -> None:
    """Write the page and the pictures."""
    (HERE / "algorithms.md").write_text(text())
    folder = HERE / "algorithms"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name in COLLECTIVES:
        draw_meaning(name, RANKS, folder / f"{name}.svg")
    for algorithm in algorithms():
        for ranks in drawn(algorithm):
            draw(algorithm, ranks, HERE / _picture(algorithm, ranks))


def drawn(algorithm: Algorithm) -> list[int]:
    """The numbers of ranks to draw: another one, too, where the algorithm folds."""
    few = len(pictured(algorithm, RANKS).panels) - 1 > MOST_ROUNDS
    return [RANKS - few, *[FOLDED_RANKS] * ("where p is" in algorithm.cost)]


def _picture(algorithm: Algorithm, ranks: int) -> str:
    return f"algorithms/{algorithm.collective}_{algorithm.name}_{ranks}.svg"


def _contents() -> Iterator[str]:
    yield "| collective | algorithms |"
    yield "|---|---|"
    for name in COLLECTIVES:
        links = ", ".join(f"[{a.name}](#{name}-{a.name})" for a in algorithms(name))
        yield f"| [{name}](#{name}) | {links} |"
    yield ""


def _section(table: Collective) -> Iterator[str]:
    yield from (f"## {table.name}", "", MEANINGS[table.name], "")
    yield from (f"![{table.name}: before and after](algorithms/{table.name}.svg)", "")
    for algorithm in algorithms(table.name):
        yield from (f"### {table.name} {algorithm.name}", "", algorithm.summary, "", "| | |", "|---|---|")
        yield from (f"| {name} | {value} |" for name, value in _facts(algorithm, table))
        yield ""
        for ranks in drawn(algorithm):
            title = f"{table.name} {algorithm.name} among {ranks} ranks"
            yield from (f"![{title}]({_picture(algorithm, ranks)})", "")


def _facts(algorithm: Algorithm, table: Collective) -> Iterator[tuple[str, str]]:
    yield "cost", f"`{algorithm.cost}`"
    yield "serves", algorithm.serves + ", every root" * table.rooted + f", and {table.name}v" * algorithm.uneven
    if algorithm.segment:
        yield "pipelined", f"in segments of {algorithm.segment >> 10} KiB"
    if table.reduces:
        few, many = (prove(algorithm, size).rounds for size in (8, 64))
        yield "roundings in 16 bits", f"{few} at 8 ranks, {many} at 64"
    yield "source", algorithm.paper


if __name__ == "__main__":
    build()

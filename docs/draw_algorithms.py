"""Build docs/reference/algorithms.md and its pictures from the registry: ``python docs/draw_algorithms.py``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from mpicoll import Communicator
from mpicoll.algorithms import Algorithm, algorithms
from mpicoll.algorithms.collectives import COLLECTIVES, Collective
from mpicoll.analysis.drawing.draw import draw, draw_meaning, pictured, usual_nodes
from mpicoll.analysis.proof.cases import prove

HERE = Path(__file__).parent / "reference"
RANKS, FOLDED_RANKS = 4, 5
MOST_ROUNDS = 10
"""An algorithm that takes more rounds is drawn for fewer ranks."""

HEAD = """\
# Algorithms

This page is for you if you want to know how a collective works, to choose an algorithm for `algorithm=`, or to write
one. It lists the meaning of each collective, and every algorithm that mpicoll has for it: what it does, what it costs,
where it comes from, and a picture of its messages.

Three other names that `algorithm=` accepts are `native`, which is the MPI library's own collective, `exchange`, which
moves all values and combines them in rank order, and `node`, which is mpicoll's kernel for the ranks of one node.
[Arrays](arrays.md#algorithms) says which of all these runs by default.

`make docs` builds this page from the code that runs. It proves each algorithm first, and then draws the picture from
the algorithm's *schedule*: the list of messages of each rank, step by step. You can do more with each:

- `mpicoll draw COLLECTIVE ALGORITHM -n RANKS -o FILE` draws it for another number of ranks or another root.
- `mpicoll verify` repeats the proofs.
- `mpicoll simulate` predicts its time on a machine: see [Predicting times](../explanation/cost.md).
- [Write your own algorithm](../how-to/own_algorithm.md) shows how to add an algorithm of your own.

## How to read a picture

- **Time** goes from left to right, in rounds. A message's round is one more than the longest chain of messages that
  had to come before it. Ranks do not wait for rounds.
- **A column of cells** is the vector of one rank. Each cell is a *block*: one of the pieces that the vector is cut
  into. The blocks are numbered from the top.
- **The colours and numbers in a cell** are those of the ranks whose contributions it holds: 0…3 means ranks 0 to 3, and
  Σ means all ranks. In a bcast and a scatter everything comes from one rank, the *root*, so colours and numbers
  are those of blocks. In an alltoall, 0→2 is what rank 0 has for rank 2. In a barrier, a cell shows which ranks a rank
  has heard from.
- **An arrow** is a message, with the numbers of its blocks beside it. It ends in ⊕ if the receiver combines the
  message with what it holds.
- **A thick frame** marks what a round has changed.
- **The last column** shows only what the collective must leave there.

## How to read a cost

A cost is the time among `p` ranks for a vector of `n` bytes, the longest vector that a rank gives or gets.

- `a` is the time that every message takes, whatever its length.
- `b` is the time to send one byte, and `g` is the time to combine one byte.
- `k` is the number of nodes, and `m` the number of ranks that each has.
- `s` is the number of *segments*. A pipelined algorithm cuts the vector into segments, and sends one on while the next
  one arrives.
- If p is not a power of two, log2(p) is rounded up. A cost that says "where p is no power of two" is an exception:
  there log2(p) is rounded down, and the cost says what is added.

## How often 16-bit values are rounded

A message of float16 or bfloat16 values carries 16 bits for each value, so each combination on the way rounds. The
table of an algorithm gives the largest number of roundings between an element of any rank and the result, as the proof
counts them. `exchange` combines in float32 and rounds once.

## All algorithms
"""


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
            draw(algorithm.collective, algorithm, ranks).save(HERE / _picture(algorithm, ranks))


def drawn(algorithm: Algorithm) -> list[int]:
    """The numbers of ranks to draw. An algorithm that folds is drawn for a second number, too."""
    few = len(pictured(algorithm, RANKS).panels) - 1 > MOST_ROUNDS
    return [RANKS - few, *[FOLDED_RANKS] * ("where p is" in algorithm.cost)]


def _picture(algorithm: Algorithm, ranks: int) -> str:
    return f"algorithms/{algorithm.collective}_{algorithm.name}_{ranks}.svg"


def _contents() -> Iterator[str]:
    yield "[Step through a schedule](step_through.md) plays each of them round by round, among 2 to 8 ranks."
    yield ""
    yield "| collective | algorithms |"
    yield "|---|---|"
    for name in COLLECTIVES:
        links = ", ".join(f"[{a.name}](#{name}-{a.name})" for a in algorithms(name))
        yield f"| [{name}](#{name}) | {links} |"
    yield ""


def _section(table: Collective) -> Iterator[str]:
    what = inspect.getdoc(getattr(Communicator, table.name)) or ""
    yield from (f"## {table.name}", "", *what.partition("\n\n")[0].replace("``", "`").splitlines(), "")
    yield from (f"![{table.name}: before and after](algorithms/{table.name}.svg)", "")
    for algorithm in algorithms(table.name):
        yield from (f"### {table.name} {algorithm.name}", "", algorithm.summary, "", "| | |", "|---|---|")
        yield from (f"| {name} | {value} |" for name, value in _facts(algorithm, table))
        yield ""
        for ranks in drawn(algorithm):
            title = f"{table.name} {algorithm.name} among {ranks} ranks" + " on 2 nodes" * algorithm.by_node
            yield from (f"![{title}]({_picture(algorithm, ranks)})", "")


def _facts(algorithm: Algorithm, table: Collective) -> Iterator[tuple[str, str]]:
    yield "cost", f"`{algorithm.cost}`"
    yield "serves", algorithm.serves + ", every root" * table.rooted + f", and {table.name}v" * algorithm.uneven
    if algorithm.by_node:
        yield "nodes", "any number, with any ranks on each"
    if algorithm.segment:
        yield "pipelined", f"in segments of {algorithm.segment >> 10} KiB"
    if table.reduces:
        few, many = (prove(algorithm, size, nodes=usual_nodes(algorithm, size)).depth for size in (8, 64))
        yield "roundings in 16 bits", f"{few} at 8 ranks, {many} at 64" + ", on 2 nodes" * algorithm.by_node
    yield "source", algorithm.paper


if __name__ == "__main__":
    build()

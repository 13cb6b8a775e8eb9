"""``python -m mpicoll.bench.report.summary record.json``: what a benchmark found, in one line for each collective.

It reads the record that ``mpicoll bench --json`` wrote. It loads neither MPI nor torch.
"""

from __future__ import annotations

import sys
from math import exp, log
from pathlib import Path

from mpicoll.bench.report.record import Record, Row, load
from mpicoll.errors import ArgumentError
from mpicoll.units import size_text

__all__ = ["fastest", "lines", "main"]


def lines(record: Record) -> list[str]:
    """The summary: each backend's time over that of the first, and the fastest at the smallest and the largest size."""
    rows: list[Row] = record["rows"]
    if not rows:
        return ["# summary: nothing was measured"]
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    text = [
        f"# summary: time over that of {backends[0]}, the geometric mean over all sizes (below 1 is faster);",
        "# and the fastest at the smallest and at the largest size, with its median",
        "# " + _line("collective", backends, "smallest", "largest"),
    ]
    for name in dict.fromkeys(row["collective"] for row in rows):
        of_name = [row for row in rows if row["collective"] == name]
        means = [_mean([row["ratio"] for row in of_name if row["backend"] == b and row["ratio"]]) for b in backends]
        ends = [size(row["size"] for row in of_name) for size in (min, max)]
        text.append("# " + _line(name, means, *(_winner(of_name, size) for size in ends)))
    return text


def fastest(rows: list[Row], size: int) -> Row:
    """The row of this size with the least median, in either placement. Rows that may not be compared count only where
    there are no others."""
    of_size = [row for row in rows if row["size"] == size]
    return min(of_size, key=lambda row: (not row.get("comparable", True), float(row["p50_us"])))


def _line(name: str, cells: list[str], smallest: str, largest: str) -> str:
    return f"{name:20}" + "".join(f"{cell:>15}" for cell in cells) + f"   {smallest:34}{largest}".rstrip()


def _mean(ratios: list[float]) -> str:
    return f"{exp(sum(map(log, ratios)) / len(ratios)):.2f}" if ratios else "N/A"


def _winner(rows: list[Row], size: int) -> str:
    row = fastest(rows, size)
    at = f" at {size_text(size)}" if size else ""
    return f"{row['backend']}{at}: {row['p50_us']:.1f} us"


def main() -> int:
    try:
        if len(sys.argv) != 2:
            raise ArgumentError("summary", "arguments", "one record", " ".join(sys.argv[1:]) or "none")
        print("\n".join(lines(load(Path(sys.argv[1])))))
    except ArgumentError as e:
        print(f"mpicoll: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

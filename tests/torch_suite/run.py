"""PyTorch's own tests of torch.distributed, as its wheel holds them, over ``backend="mpicoll"``.

    python -m tests.torch_suite.run [words that a test's name must hold]

Run by an environment with mpicoll and torch. torch's test case starts a process for each rank and test; here the ranks
are MPI's, RANKS of them, which run test after test (``in_ranks``). A test that fails on some ranks may leave the others
waiting: it ends the job, and another job goes on after it. The tests that KNOWN names are left out, unless words are
given.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.processes import job
from tests.torch_suite.known import KNOWN

REPOSITORY = Path(__file__).parents[2]
RANKS = 3
"""As PyTorch's own CI has them: groups of two of three, and a rank outside."""
SILENCE = 300.0
"""Seconds in which no test ends: one hangs."""


def told(folder: Path) -> list[list[tuple[str, str]]]:
    """What each rank has noted: (outcome or "running", test)."""
    files = [folder / str(rank) for rank in range(RANKS)]
    lines = [file.read_text().splitlines() if file.exists() else [] for file in files]
    return [[(line.split()[0], line.split()[1]) for line in of_rank] for of_rank in lines]


def one_job(after: str, words: list[str], outcomes: dict[str, str]) -> tuple[str | None, str]:
    """Run the tests that come ``after`` one. The test at which the job ended, if it is not at its end; and its
    output."""
    with tempfile.TemporaryDirectory(prefix="mpicoll-suite-") as name:
        folder = Path(name)
        python = [sys.executable, "-m", "mpicoll", "run", "-n", str(RANKS)]
        argv = [*python, "-m", "tests.torch_suite.in_ranks", name, after or "-", *words]
        with job(argv, folder / "output", {"OMP_NUM_THREADS": "1", **os.environ}, REPOSITORY) as started:
            seen, since = -1, time.monotonic()
            while time.monotonic() - since < SILENCE:
                try:
                    started.process.wait(1.0)
                    break
                except subprocess.TimeoutExpired:
                    now = sum(map(len, told(folder)))
                    if now != seen:
                        seen, since = now, time.monotonic()
        notes = told(folder)
        for of_rank in notes:
            for outcome, test in of_rank:
                if outcome != "running" and outcomes.get(test) != "failed":
                    outcomes[test] = outcome
        ended = [of_rank[-1][1] for of_rank in notes if of_rank and of_rank[-1][0] == "running"]
        return (min(ended) if ended else None), (folder / "output").read_text(errors="replace")


def main() -> int:
    words, outputs = sys.argv[1:], []
    outcomes: dict[str, str] = {}
    at: str | None = ""
    while at is not None:
        at, output = one_job(at, words, outcomes)
        outputs.append(output)
        if at is not None:
            outcomes[at] = "failed"
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    passed = {test for test, outcome in outcomes.items() if outcome == "passed"}
    wrong = sorted(failed - set(KNOWN)) + sorted(passed & set(KNOWN))
    if wrong or not outcomes:
        print("\n".join(outputs))
    for test in wrong:
        print(f"{test} {outcomes[test]}, and tests/torch_suite/known.py says otherwise")
    counts = Counter(outcomes.values())
    print(", ".join(f"{counts[k]} {k}" for k in ("passed", "failed", "skipped")))
    return 1 if wrong or not passed else 0


if __name__ == "__main__":
    sys.exit(main())

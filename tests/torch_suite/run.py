"""PyTorch's own tests of torch.distributed, as its wheel holds them, over ``backend="mpicoll"``.

    python tests/torch_suite/run.py [words that a test's name must hold]

Run by an environment with mpicoll and torch. torch's test case starts a process for each rank and test; here the ranks
are MPI's, RANKS of them, which run test after test (``in_ranks``). A test that fails on one rank leaves the others
waiting: it ends the job, and another job goes on after it. Fails if a test fails that KNOWN does not name, or one of
those passes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from known import KNOWN  # noqa: E402
from processes import job  # noqa: E402

RANKS = 3
"""As PyTorch's own CI has them: groups of two of three, and a rank outside."""
SILENCE = 120.0
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
        argv = [*python, str(HERE / "in_ranks.py"), name, after or "-", *words]
        with job(argv, folder / "output", {"OMP_NUM_THREADS": "1", **os.environ}, HERE.parents[1]) as started:
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
        begun = [of_rank[-1] for of_rank in notes if of_rank]
        ended = [test for outcome, test in begun if outcome in ("running", "failed")]
        return (min(ended) if ended else None), (folder / "output").read_text(errors="replace")


def main() -> int:
    words, outcomes, after, code = sys.argv[1:], {}, "", 0
    while True:
        at, output = one_job(after, words, outcomes)
        if at is None:
            break
        outcomes[at] = "failed"
        if at not in KNOWN:
            print(f"{at} failed:\n" + "\n".join(output.splitlines()[-60:]), flush=True)
            code = 1
        after = at
    for test in sorted(outcomes):
        if outcomes[test] == "passed" and test in KNOWN:
            print(f"{test} passed, though tests/torch_suite/known.py names it")
            code = 1
    if not outcomes:
        print(output)
        code = 1
    counts = Counter(outcomes.values())
    print(", ".join(f"{counts[k]} {k}" for k in ("passed", "failed", "skipped")), f"({len(KNOWN)} by name)")
    return code


if __name__ == "__main__":
    sys.exit(main())

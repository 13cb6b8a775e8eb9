"""PyTorch's own tests of torch.distributed, as its wheel holds them, over ``backend="mpicoll"``.

    python -m tests.torch_suite.run [words that a test's name must hold]

Run by an environment with mpicoll and torch. torch's test case starts a process for each rank and test; here the ranks
are MPI's, RANKS of them, which run test after test (``in_ranks``). A test that fails on some ranks may leave the others
waiting: it ends the job, and another job goes on after it. The tests that KNOWN names are left out, unless words are
given."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

from tests.matrix import begun, wait
from tests.torch_suite.known import KNOWN

RANKS = 3
"""As PyTorch's own CI has them: groups of two of three, and a rank outside."""


def one_job(after: str, words: list[str], outcomes: dict[str, str]) -> tuple[str | None, str]:
    """Run the tests that come ``after`` one. The test at which the job ended, if it is not at its end; and its
    output."""
    python = [sys.executable, "-m", "mpicoll", "run", "-n", str(RANKS)]
    with begun([*python, "-m", "tests.torch_suite.in_ranks", after or "-", *words]) as it:
        wait(it.job.process, it.notes)
        notes = [[line.split() for line in file.read_text().splitlines()] for file in it.notes.iterdir()]
        output = it.output.read_text(errors="replace")
    for outcome, test in chain.from_iterable(notes):
        if outcome != "running" and outcomes.get(test) != "failed":
            outcomes[test] = outcome
    ended = [of_rank[-1][1] for of_rank in notes if of_rank and of_rank[-1][0] == "running"]
    return (min(ended) if ended else None), output


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

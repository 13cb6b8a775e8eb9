"""Runs the tests on each MPI, at 1, 2, 3 and 4 ranks, and those that know no MPI, and counts.

    python3 tests/matrix.py .venv/openmpi .venv/mpich [-- pytest's arguments, such as -k name]

Each environment and number of ranks is one launch, with a deadline: a hang is a failure. Needs only the standard
library, because what the tests need lies in the environments.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import cycle
from pathlib import Path

from processes import job

HERE = Path(__file__).parent
DEADLINE = 600.0
SIZES = (1, 2, 3, 4)
ONCE = ["tests/launch", "tests/integrations", "tests/test_imports.py", "tests/test_exports.py"]
"""These start their own jobs."""
PURE = ["tests/algorithms", "tests/analysis", "tests/cli", "tests/test_select.py", "tests/test_threads.py"]
"""These know no MPI: one environment is enough."""
ELSEWHERE = ["tests/slurm"]
"""These need a cluster: `make slurm-test` runs them."""
THROUGH_TORCH = [f"tests/torch/test_{name}.py" for name in ("async", "bad_input", "collectives", "groups", "scenarios")]
"""Tests of mpicoll.torch that are run once more in each environment, with torch.distributed itself in its place."""
IN_THREADS = ["tests/torch", "tests/test_random.py"]
"""Tests of ranks that are run once more with threads as ranks."""
TAIL = 100
FRAMES = re.compile(r'  File ".*(/_pytest/|/pytest/|/pluggy/|/mpi4py/run|<frozen runpy>)')  # around every test


def outcomes(folder: Path) -> Counter[str]:
    """What rank 0 counted, and that a test failed if it failed elsewhere."""
    found: Counter[str] = Counter()
    for file in sorted(folder.iterdir()):
        lines = [line.split()[0] for line in file.read_text().splitlines()]
        if file.name == "0":
            found.update(lines)
        elif "failed" in lines and not found["failed"]:
            found["failed"] += 1
    return found


def standing(folder: Path) -> str:
    """Where each rank was last seen."""
    notes = {file.name: file.read_text().splitlines() for file in sorted(folder.iterdir())}
    return "\n".join(f"rank {rank}: {lines[-1] if lines else 'before its first test'}" for rank, lines in notes.items())


def launch(title: str, argv: list[str], selected: bool) -> Counter[str]:
    """One launch; returns its counts of passed, failed and skipped."""
    print(f"{title}: ", end="", flush=True)
    with tempfile.TemporaryDirectory(prefix="mpicoll-tests-") as name:
        folder = Path(name)
        (folder / "ranks").mkdir()
        env = {"OMP_NUM_THREADS": "1", **os.environ, "MPICOLL_OUTCOMES": str(folder / "ranks")}
        with job(argv, folder / "output", env, HERE.parent) as started:
            try:
                code: int | None = started.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                code = None
            seconds = started.seconds()
        counts = outcomes(folder / "ranks")
        nothing = counts["passed"] + counts["failed"] == 0
        if code == 5 and nothing and selected:  # pytest's code for no tests
            print("nothing selected")
            return counts
        if counts["failed"] == 0 and (code != 0 or (nothing and not selected)):
            counts["failed"] = 1
        print(", ".join(f"{counts[k]} {k}" for k in ("passed", "failed", "skipped")), f"in {seconds:.0f} s")
        if counts["failed"]:
            lines = (folder / "output").read_text(errors="replace").splitlines()
            print("\n".join([line for line in lines if not FRAMES.match(line)][-TAIL:]))
            how = f"was killed after {DEADLINE:.0f} s" if code is None else f"ended with {code}"
            print(f"{title} {how}. Last seen:\n{standing(folder / 'ranks')}", flush=True)
    return counts


def ranks(python: str, n: int, tests: list[str]) -> list[str]:
    """How to start the tests as ``n`` ranks."""
    return [python, "-m", "mpicoll", "run", "-n", str(n), "-m", "pytest", "--with-mpi", *tests]


def main() -> int:
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    environments, chosen = argv[:cut], argv[cut + 1 :]
    total: Counter[str] = Counter()
    # A test that takes this long prints where every thread of its rank is.
    options = ["-q", "--color=no", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={DEADLINE / 3:.0f}", *chosen]
    for environment, of_torch in zip(environments, cycle((3, 4)), strict=False):
        python = str(Path(environment, "bin", "python").absolute())
        mpi = Path(environment).name
        for size in SIZES:
            tests = ["tests", *(f"--ignore={path}" for path in ONCE + PURE + ELSEWHERE), *options]
            total += launch(f"{mpi}, {size} rank{'s' * (size > 1)}", ranks(python, size, tests), bool(chosen))
        tests = ["--api", "torch", *THROUGH_TORCH, *options]
        total += launch(f"{mpi}, {of_torch} ranks, torch's API", ranks(python, of_torch, tests), bool(chosen))
        total += launch(f"{mpi}, launches", [python, "-m", "pytest", *ONCE, *options], bool(chosen))
    python = str(Path(environments[0], "bin", "python").absolute())
    total += launch("without MPI", [python, "-m", "pytest", *PURE, *options], bool(chosen))
    total += launch("4 threads", [python, "-m", "pytest", "--threads", "4", *IN_THREADS, *options], bool(chosen))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

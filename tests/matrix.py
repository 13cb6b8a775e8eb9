"""Runs the tests on each MPI, at 1, 2, 3 and 4 ranks, and counts.

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
from pathlib import Path

from processes import job

HERE = Path(__file__).parent
DEADLINE = 300.0
SIZES = (1, 2, 3, 4)
ONCE = ["tests/launch", "tests/test_imports.py", "tests/test_exports.py"]  # these start their own jobs
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


def main() -> int:
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    environments, chosen = argv[:cut], argv[cut + 1 :]
    total: Counter[str] = Counter()
    # A test that takes this long prints where every thread of its rank is.
    options = ["-q", "--color=no", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={DEADLINE / 3:.0f}", *chosen]
    for environment in environments:
        python = str(Path(environment, "bin", "python").absolute())
        mpi = Path(environment).name
        for size in SIZES:
            tests = ["tests", *(f"--ignore={path}" for path in ONCE), "--with-mpi", *options]
            ranks = [python, "-m", "mpicoll", "run", "-n", str(size), "-m", "pytest", *tests]
            total += launch(f"{mpi}, {size} rank{'s' * (size > 1)}", ranks, bool(chosen))
        total += launch(f"{mpi}, launches", [python, "-m", "pytest", *ONCE, *options], bool(chosen))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

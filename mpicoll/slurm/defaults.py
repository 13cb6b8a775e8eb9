"""A site's defaults for job scripts, such as the account and the modules, from files.

A file has lines of TOML: ``partition = "gpu"`` for an option, ``site = "roce"`` for the preset of the network, and
``MPICOLL_MODULES = "openmpi"`` for a variable of the scripts."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from mpicoll.errors import ArgumentError, misspelt
from mpicoll.machine.system import user_folder


@dataclass
class Defaults:
    """Options of sbatch, the preset of the network, and variables of the scripts."""

    options: dict[str, str] = field(default_factory=dict)
    site: str = "auto"
    variables: dict[str, str] = field(default_factory=dict)


def files() -> list[Path]:
    """The site's file and the user's own, whose values win."""
    folders = Path("/etc"), user_folder("XDG_CONFIG_HOME")
    return [folder / "mpicoll/slurm.toml" for folder in folders if folder is not None]


def read(options: Collection[str], sites: Collection[str], variables: Collection[str]) -> Defaults:
    """What these files say. The arguments are all names that may be there. Raises ArgumentError for anything else."""
    found = Defaults()
    for file in files():
        if not os.path.isfile(file):
            continue
        try:
            values = tomllib.loads(file.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ArgumentError("slurm", str(file), "TOML", str(error)) from error
        for name, value in values.items():
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise ArgumentError("slurm", f"{file}: {name}", "a text or a number", repr(value))
            if name in options:
                found.options[name] = str(value)
            elif name == "site" and value in sites:
                found.site = str(value)
            elif name in variables:
                found.variables[name] = str(value)
            elif name == "site":
                raise ArgumentError("slurm", f"{file}: site", f"one of {', '.join(sites)}", repr(value))
            else:
                expected = "an option of mpicoll slurm, site, or a variable of a script"
                raise ArgumentError("slurm", str(file), expected, misspelt(name, [*options, "site", *variables]))
    return found

"""A site's defaults for job scripts, such as the account and the modules.

A file with defaults has lines of TOML: ``partition = "gpu"`` for an option, ``site = "roce"`` for the preset of the
network, and ``MPICOLL_MODULES = "openmpi"`` for a variable of the scripts."""

from __future__ import annotations

import tomllib
from pathlib import Path

from mpicoll.errors import ArgumentError, misspelt
from mpicoll.machine.system import user_folder
from mpicoll.slurm import sbatch


def files() -> list[Path]:
    """The site's file and the user's own, whose values win."""
    folders = Path("/etc"), user_folder("XDG_CONFIG_HOME")
    return [folder / "mpicoll/slurm.toml" for folder in folders if folder is not None]


def read() -> dict[str, str]:
    """What these files say. Raises ArgumentError for what is no option, preset of the network, or variable."""
    found: dict[str, str] = {}
    sites = sbatch.sites()
    variables = {name for each in sbatch.TEMPLATES for site in sites for name in sbatch.variables(each, site)}
    for file in filter(Path.is_file, files()):
        try:
            values = tomllib.loads(file.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ArgumentError("slurm", str(file), "TOML", str(error)) from error
        for name, value in values.items():
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise ArgumentError("slurm", f"{file}: {name}", "a text or a number", repr(value))
            if name == "site" and value not in sites:
                raise ArgumentError("slurm", f"{file}: site", f"one of {', '.join(sites)}", repr(value))
            if name not in (known := [*sbatch.OPTIONS, "site", *variables]):
                expected = "an option of mpicoll slurm, site, or a variable of a script"
                raise ArgumentError("slurm", str(file), expected, misspelt(name, known))
            found[name] = str(value)
    return found

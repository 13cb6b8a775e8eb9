"""What a site says of job scripts: its defaults, such as the account and the modules, and what its partitions allow.

A file with defaults has lines of TOML: ``partition = "gpu"`` for an option, ``site = "roce"`` for the preset of the
network, and ``MPICOLL_MODULES = "openmpi"`` for a variable of the scripts. The limits of a partition are those of
``scontrol``: ``sbatch --test-only`` takes scripts that they keep in the queue for ever."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mpicoll.errors import ArgumentError, misspelt
from mpicoll.machine.system import user_folder
from mpicoll.slurm import sbatch

_OPTION = re.compile(r"^#SBATCH\s+--([a-z-]+)=['\"]?([^\s'\"]+)", re.MULTILINE)


def files() -> list[Path]:
    """The site's file and the user's own, whose values win."""
    folders = Path("/etc"), user_folder("XDG_CONFIG_HOME")
    return [folder / "mpicoll/slurm.toml" for folder in folders if folder is not None]


def read() -> dict[str, str]:
    """What these files say. Raises ArgumentError if they have anything else than options of sbatch, the preset of the
    network, and variables of the scripts."""
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


# -- partitions ------------------------------------------------------------------------------------------------------


def asked(script: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The options of a script, and the partition of sbatch's own variable, which wins over the script's."""
    options = dict(_OPTION.findall(script))
    if "SBATCH_PARTITION" in environment:
        options["partition"] = environment["SBATCH_PARTITION"]
    return options


def partitions(shown: str) -> list[dict[str, str]]:
    """What ``scontrol --oneliner show partition`` says of each partition."""
    return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in shown.splitlines() if "PartitionName=" in line]


def minutes(time: str) -> float | None:
    """A time as Slurm spells it, in minutes. None if it has no limit, or is no time."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        return None
    days, first, second, third = (int(each or 0) for each in found.groups())
    if found[1] is not None:  # D-HH:MM:SS
        return days * 1440 + first * 60 + second + third / 60
    return first * 60 + second + third / 60 if found[4] is not None else first + second / 60  # HH:MM:SS, MM:SS, MM


def beyond(options: Mapping[str, str], known: Sequence[Mapping[str, str]]) -> list[str]:
    """What a job with these options asks for that none of its partitions gives. Empty if one of them can run it."""
    names = options.get("partition", "").split(",")
    mine = [p for p in known if p["PartitionName"] in names or (names == [""] and p.get("Default") == "YES")]
    problems = [list(_problems(options, partition)) for partition in mine]
    return [] if not all(problems) else [problem for each in problems for problem in each]


def _problems(options: Mapping[str, str], partition: Mapping[str, str]) -> Iterator[str]:
    name = f"partition {partition['PartitionName']}"
    state = partition.get("State", "UP")
    if state != "UP":
        yield f"{name} is {state}"
    wants, gives = minutes(options.get("time", "")), minutes(partition.get("MaxTime", ""))
    if wants is not None and gives is not None and wants > gives:
        yield f"--time: expected at most {partition['MaxTime']}, the limit of {name}; given {options['time']}"
    nodes = options.get("nodes", "")
    for limit, why in (("MaxNodes", "the limit of"), ("TotalNodes", "as many as are in")):
        most = partition.get(limit, "")
        if nodes.isdecimal() and most.isdecimal() and int(nodes) > int(most):
            yield f"--nodes: expected at most {most}, {why} {name}; given {nodes}"
            break

"""What a partition allows. ``sbatch --test-only`` takes scripts that its limits keep in the queue for ever."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_OPTION = re.compile(r"^#SBATCH\s+--([a-z-]+)=['\"]?([^\s'\"]+)", re.MULTILINE)


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

"""What the doctor says: findings, those of several ranks together, and the report of them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import mpicoll
from mpicoll.units import count, named

Level = Literal["ok", "warning", "problem"]
"""A problem breaks a program, makes it wrong, or much slower. A warning does none of that, or only to some programs."""


TOPICS = (
    "launcher", "MPI", "threads", "cores", "kernel", "shared memory", "/dev/shm", "locked memory", "GPU", "CPU",
    "versions", "settings", "algorithm",
)  # fmt: skip
"""What findings are about, in the report's order."""
_PLACES = ("cores", "GPU")  # those that say where the ranks are


@dataclass(frozen=True)
class Finding:
    """One thing that was found, what to do about it (empty: nothing), and on which ranks it is so (empty: on all)."""

    topic: str
    level: Level
    text: str
    remedy: str = ""
    ranks: tuple[int, ...] = ()


def together(findings: Iterable[Finding], ranks: Iterable[int]) -> list[Finding]:
    """The findings by topic, with those that differ in their ranks alone as one. ``ranks`` are all of the job."""
    everyone = set(ranks)
    merged: dict[Finding, set[int]] = {}
    for finding in findings:
        merged.setdefault(replace(finding, ranks=()), set()).update(finding.ranks or everyone)
    found = [replace(f, ranks=() if whom == everyone else tuple(sorted(whom))) for f, whom in merged.items()]
    return sorted(found, key=lambda finding: TOPICS.index(finding.topic))


@dataclass(frozen=True)
class Report:
    """All findings of a job, the node of each rank, and the MPI library, None where it does not connect the ranks."""

    nodes: Mapping[int, str]
    mpi: str | None
    findings: list[Finding]

    @property
    def problems(self) -> int:
        return sum(f.level == "problem" for f in self.findings)

    @property
    def warnings(self) -> int:
        return sum(f.level == "warning" for f in self.findings)

    def text(self, short: bool = False) -> str:
        """The findings; in ``short``, where the ranks are and what is wrong."""
        where = f"{count(len(self.nodes), 'rank')} on {count(len(set(self.nodes.values())), 'node')}"
        which = f"{self.mpi}, {where}" if self.mpi else "one process alone"
        lines = [f"mpicoll {mpicoll.__version__}, {which}", ""]
        for f in self.findings:
            if short and f.level == "ok" and f.topic not in _PLACES:
                continue
            lines.append(f"{f.level:8} {f.topic:14} {self._who(f)}{f.text}")
            if f.remedy:
                lines.append(f"{'':8} {'':14} -> {f.remedy}")
        return "\n".join([*lines, "", f"{count(self.problems, 'problem')}, {count(self.warnings, 'warning')}", ""])

    def _who(self, finding: Finding) -> str:
        """The ranks, with their nodes where there are several: ``ranks 0-1 on node1: ``. Empty for all ranks, but for
        what the cores of several nodes are: it says where each rank is."""
        several = len(set(self.nodes.values())) > 1
        ranks = finding.ranks or (sorted(self.nodes) if several and finding.topic == "cores" else ())
        if not ranks:
            return ""
        if not several:
            return f"{named(ranks)}: "
        on_node: dict[str, list[int]] = {}
        for rank in ranks:
            on_node.setdefault(self.nodes[rank], []).append(rank)
        return ", ".join(f"{named(there)} on {node}" for node, there in on_node.items()) + ": "

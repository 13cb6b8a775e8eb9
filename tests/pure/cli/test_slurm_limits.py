"""``mpicoll slurm --check`` compares a script with the limits of a partition."""

from __future__ import annotations

import pytest

from mpicoll.slurm import site

LIMITS = """\
PartitionName=short AllowGroups=ALL Default=YES MaxNodes=4 MaxTime=01:00:00 State=UP TotalCPUs=64 TotalNodes=8
PartitionName=long AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MaxTime=7-00:00:00 State=UP TotalNodes=8
PartitionName=off AllowGroups=ALL Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN TotalNodes=8
"""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"time": "02:00:00"}, "--time: expected at most 01:00:00, the limit of partition short; given 02:00:00"),
        ({"time": "60"}, None),
        ({"time": "61"}, "--time"),
        ({"time": "2:00:00", "partition": "long"}, None),
        ({"time": "2:00:00", "partition": "short,long"}, None),
        ({"time": "8-0", "partition": "short,long"}, "7-00:00:00, the limit of partition long"),
        ({"nodes": "5"}, "--nodes: expected at most 4, the limit of partition short; given 5"),
        ({"nodes": "9", "partition": "long"}, "--nodes: expected at most 8, as many as are in partition long; given 9"),
        ({"partition": "off"}, "partition off is DOWN"),
        ({"partition": "unknown"}, None),
    ],
)
def test_the_limits_of_a_partition(options: dict[str, str], problem: str | None) -> None:
    said = site.beyond(options, site.partitions(LIMITS))
    assert (said == []) if problem is None else (problem in " ".join(said))

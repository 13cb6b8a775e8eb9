"""The CPU: its fingerprint, and how many there are. What was measured on one CPU holds only on CPUs with the same
fingerprint."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

UNKNOWN = "unknown"

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# The name alone is not enough: hypervisors give different CPUs the same name, such as "AMD EPYC".
_MODELS = (
    "{vendor_id} {model name}, family {cpu family} model {model} stepping {stepping}",
    "implementer {CPU implementer} part {CPU part} variant {CPU variant} revision {CPU revision}",
)


def cpus() -> set[int]:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return {*range(os.cpu_count() or 1)}


def bind(to: set[int]) -> None:
    """Let this process use these CPUs alone, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, to)


@cache
def fingerprint() -> str:
    """The first CPU's vendor, name, family, model and stepping. Then, for each cache above the first level, its size
    and the number of CPUs that share it. UNKNOWN where the system does not say all of that."""
    try:
        model, caches = _model(), _caches()
    except (OSError, ValueError):
        return UNKNOWN
    return ", ".join([model, *caches]) if model and caches else UNKNOWN


def _model() -> str:
    """The first CPU's model; empty where the system does not say all of it."""
    fields: dict[str, str] = {}
    with _CPUINFO.open() as f:
        for line in f:
            if not line.strip():  # the end of the first CPU; to read about all others can take milliseconds
                break
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    for model in _MODELS:
        try:
            return model.format_map(fields)
        except KeyError:
            continue
    return ""


def _caches() -> list[str]:
    caches = []
    for index in sorted(_CACHES.glob("index*")):
        level, size, sharing = ((index / name).read_text().strip() for name in ("level", "size", "shared_cpu_map"))
        if int(level) > 1:
            caches.append(f"L{level} {size} of {int(sharing.replace(',', ''), 16).bit_count()}")
    return caches

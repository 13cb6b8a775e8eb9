"""The CPU's fingerprint: what was measured on a CPU is known to hold on its like alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["UNKNOWN", "fingerprint"]

UNKNOWN = "unknown"

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Hypervisors call many CPUs "AMD EPYC": the name alone tells too little.
_MODELS = (
    "{vendor_id} {model name}, family {cpu family} model {model} stepping {stepping}",
    "implementer {CPU implementer} part {CPU part} variant {CPU variant} revision {CPU revision}",
)


@cache
def fingerprint() -> str:
    """The first CPU's vendor, name, family, model and stepping, and the size of its caches above the first level with
    the number of CPUs that share each. UNKNOWN where the system does not say all of that."""
    try:
        model, caches = _model(), _caches()
    except (OSError, ValueError):
        return UNKNOWN
    return ", ".join([model, *caches]) if model and caches else UNKNOWN


def _model() -> str:
    said: dict[str, str] = {}
    with _CPUINFO.open() as f:
        for line in f:
            if not line.strip():  # the others are alike, and on large machines their lines take milliseconds
                break
            key, _, value = line.partition(":")
            said[key.strip()] = value.strip()
    for model in _MODELS:
        try:
            return model.format_map(said)
        except KeyError:
            continue
    return ""


def _caches() -> list[str]:
    found = []
    for index in sorted(_CACHES.glob("index*")):
        level, size, sharing = ((index / name).read_text().strip() for name in ("level", "size", "shared_cpu_map"))
        if int(level) > 1:
            found.append(f"L{level} {size} of {int(sharing.replace(',', ''), 16).bit_count()}")
    return found

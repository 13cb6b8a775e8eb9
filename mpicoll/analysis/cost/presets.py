"""Machines by name, and machines that a file describes.

The rates of those with a name come from data sheets or a measurement, their latencies from the sources named here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from mpicoll.analysis.cost.machines import NETWORKS, PLACEMENTS, FatTree, Level, Machine, Network, Rate
from mpicoll.errors import ArgumentError

# Within a node of CPUs, as `mpicoll simulate --fit -n 2` measured it on 2 virtual cores of a Xeon at 2.1 GHz (Sapphire
# Rapids) with Open MPI 5.0.11. The time of Python is included.
_CORES = Level(name="node", ranks=None, latency=1.8e-7, gap=(1.59e-10, 1.18e-10, 1.11e-10), overhead=2.7e-7, ports=1)
_LAPTOP = Machine(
    name="laptop",
    source="mpicoll simulate --fit -n 2 on 2 virtual cores of a Xeon at 2.1 GHz, Open MPI 5.0.11",
    levels=(_CORES,),
    reduction=(1.15e-10, 9.4e-11, 2.03e-10),
    copy=(2.3e-11, 3.3e-11, 8.3e-11),
    reduction_overhead=2.1e-6,
    copy_overhead=4.0e-7,
    step=7.5e-7,
    caches=(1 << 17, 1 << 21),
    eager=256,
)

_ETHERNET = replace(
    _LAPTOP,
    name="ethernet",
    source="100 GbE (IEEE 802.3) at line rate, half a ping-pong as Cisco measured it; nodes of 32 cores like laptop's",
    levels=(
        replace(_CORES, ranks=32),
        Level(
            name="cluster",
            ranks=None,
            # Half a ping-pong of Open MPI over Ethernet that bypasses the kernel, back to back: 1.93 us, both
            # overheads in it (J. Squyres, MPI over 40 Gb Ethernet, Cisco 2014); a cut-through switch: 0.25 us (Cisco
            # Nexus 3548).
            latency=1.93e-6 + 0.25e-6 - 2 * _CORES.overhead,
            gap=8 / 100e9,  # 100 Gb/s
            overhead=_CORES.overhead,
            ports=1,  # one adapter a node
        ),
    ),
    eager=None,
    cores=32,
)

_IB_H100 = Machine(
    name="ib-h100",
    source="data sheets of H100 SXM, DGX H100 and ConnectX-7; latencies and buffers that NCCL assumes",
    levels=(
        Level(
            name="node",
            ranks=8,
            latency=0.6e-6,  # NCCL's src/graph/tuning.cc: ring over NVLink, LL protocol
            gap=1 / 450e9,  # data sheet of H100 SXM: NVLink 900 GB/s, half of it each way
            overhead=0.0,  # in NCCL's latency
            ports=1,
        ),
        Level(
            name="cluster",
            ranks=None,
            latency=2.7e-6,  # NCCL's src/graph/tuning.cc: ring over a network, LL protocol
            gap=8 / 400e9,  # data sheet of ConnectX-7: NDR, 400 Gb/s
            overhead=0.0,
            ports=8,  # DGX H100 user guide: one ConnectX-7 a GPU
        ),
    ),
    # Data sheet of H100 SXM: HBM3 at 3.35 TB/s. A reduction reads two vectors and writes one, a copy reads and writes.
    reduction=3 / 3.35e12,
    copy=2 / 3.35e12,
    eager=4 << 20,  # NCCL_BUFFSIZE's default: the receiver's buffer
)

MACHINES = {machine.name: machine for machine in (_LAPTOP, _ETHERNET, _IB_H100)}


# -- a machine from a file --------------------------------------------------------------------------------------------

Made = TypeVar("Made")
_Check = Callable[[Any, str], Any]
"""Takes what was given for the field of this name. Returns the value, or raises ArgumentError."""


def read(path: Path) -> Machine:
    """The machine that a JSON or TOML file describes. Raises ArgumentError, which names the field."""
    try:
        text = path.read_text()
        given = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as e:
        expected = "the name of a machine, or a JSON or TOML file that describes one"
        raise _bad("--machine", expected, f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise _bad("--machine", "a file in JSON (or TOML, if so named)", f"{path}: {e}") from e
    return from_dict(given)


def from_dict(given: object) -> Machine:
    """The machine described by these keys. Raises ArgumentError, which names the field that is wrong."""
    caches = _caches(given.get("caches", ()), "machine.caches") if isinstance(given, Mapping) else ()

    def rate(given: Any, name: str) -> Rate:
        if not isinstance(given, list | tuple):
            return _seconds(given, name)
        if len(given) != len(caches) + 1:
            raise _bad(name, f"one rate, or {len(caches) + 1}: one more than machine.caches", repr(given))
        return tuple(_seconds(each, name) for each in given)

    def levels(given: Any, name: str) -> tuple[Level, ...]:
        if not isinstance(given, list | tuple) or not given:
            raise _bad(name, "a list of levels, from the inside out", repr(given))
        last = len(given) - 1
        return tuple(level(each, f"{name}[{i}]", i == last) for i, each in enumerate(given))

    def level(given: Any, name: str, outermost: bool) -> Level:
        return _made(
            Level, given, name, name=_text, ranks=_or_none(_whole(1)) if outermost else _whole(1), latency=_seconds,
            gap=rate, overhead=_seconds, ports=_whole(1), overlap=_bool, network=_or_none(_network),
        )  # fmt: skip

    made = _made(
        Machine, given, "machine", name=_text, source=_text, levels=levels, reduction=rate, copy=rate,
        reduction_overhead=_seconds, copy_overhead=_seconds, step=_seconds, caches=_caches,
        eager=_or_none(_whole(0)), cores=_or_none(_whole(1)), placement=_placement,
    )  # fmt: skip
    for i, each in enumerate(made.levels):
        if each.ranks is not None and each.ranks % made.below(i):
            expected = f"a multiple of the {made.below(i)} of the level inside it"
            raise _bad(f"machine.levels[{i}].ranks", expected, str(each.ranks))
        units = None if each.network is None else each.network.most
        if units is not None and each.ranks is not None and each.ranks > units * made.below(i):
            expected = f"at most the {units * made.below(i)} ranks that network.dims holds"
            raise _bad(f"machine.levels[{i}].ranks", expected, str(each.ranks))
    return made


def _network(given: Any, name: str) -> Network:
    kinds = " or ".join(each.kind for each in NETWORKS)
    if not isinstance(given, Mapping):
        raise _bad(name, f"a table whose kind is {kinds}", repr(given))
    of: type[Any] | None = next((each for each in NETWORKS if each.kind == given.get("kind")), None)
    if of is None:
        raise _bad(f"{name}.kind", kinds, repr(given.get("kind")))
    several = _wholes(1) if of is FatTree else _whole(1)
    made: Network = _made(
        of, given, name, dims=_wholes(2), units=several, links=_whole(1), uplinks=_wholes(1), hop=_seconds
    )
    if isinstance(made, FatTree):
        if any(upper % lower or upper == lower for lower, upper in pairwise(made.units)):
            raise _bad(f"{name}.units", "each a multiple of the one before", repr(given["units"]))
        if len(made.uplinks) != len(made.units):
            expected = f"{len(made.units)} numbers, one for each of units"
            raise _bad(f"{name}.uplinks", expected, repr(given["uplinks"]))
    return made


def _made(of: type[Made], given: object, where: str, **checks: _Check) -> Made:
    """An object of the class, whose fields have the given values. One that is left out has its default."""
    known = {f.name: f for f in fields(of)}  # type: ignore[arg-type]
    if not isinstance(given, Mapping):
        raise _bad(where, "a table of " + ", ".join(known), repr(given))
    for key in given:
        if key not in known:
            raise _bad(f"{where}.{key}", "no such field; there are " + ", ".join(known), repr(given[key]))
    for name, field in known.items():
        if field.default is MISSING and name not in given:
            raise _bad(f"{where}.{name}", "to be given", "nothing")
    found = {name: given[name] for name, field in known.items() if field.init and name in given}
    return of(**{name: checks[name](value, f"{where}.{name}") for name, value in found.items()})


def _or_none(check: _Check) -> _Check:
    return lambda given, name: None if given is None else check(given, name)


def _text(given: Any, name: str) -> str:
    if not isinstance(given, str):
        raise _bad(name, "a text", repr(given))
    return given


def _bool(given: Any, name: str) -> bool:
    if not isinstance(given, bool):
        raise _bad(name, "true or false", repr(given))
    return given


def _placement(given: Any, name: str) -> str:
    if given not in PLACEMENTS:
        raise _bad(name, " or ".join(PLACEMENTS), repr(given))
    return str(given)


def _seconds(given: Any, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
        raise _bad(name, "seconds, at least 0", repr(given))
    return float(given)


def _whole(least: int) -> _Check:
    def check(given: Any, name: str) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            raise _bad(name, f"a whole number, at least {least}", repr(given))
        return given

    return check


def _wholes(least: int) -> _Check:
    def check(given: Any, name: str) -> tuple[int, ...]:
        if not isinstance(given, list | tuple) or not given:
            raise _bad(name, f"a list of whole numbers, each at least {least}", repr(given))
        return tuple(_whole(least)(each, name) for each in given)

    return check


def _caches(given: Any, name: str) -> tuple[int, ...]:
    if not isinstance(given, list | tuple):
        raise _bad(name, "a list of bytes", repr(given))
    found = tuple(_whole(1)(each, name) for each in given)
    if list(found) != sorted(set(found)):
        raise _bad(name, "bytes in ascending order", repr(given))
    return found


def _bad(field: str, expected: str, given: str) -> ArgumentError:
    return ArgumentError("simulate", field, expected, given)

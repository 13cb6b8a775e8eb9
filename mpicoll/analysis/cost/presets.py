"""Machines that a file describes. Those with a name are the files of the folder ``described``, which says where each
figure comes from."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mpicoll.analysis.cost.machines import NETWORKS, PLACEMENTS, FatTree, Machine
from mpicoll.errors import ArgumentError

_bad = partial(ArgumentError, "simulate")


def read(path: Path) -> Machine:
    """The machine that a JSON or TOML file describes. Raises ArgumentError, which names the field."""
    try:
        text = path.read_text()
        given = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as e:
        raise _bad("--machine", f"{', '.join(MACHINES)}, or a file that describes one", f"{path}: {e.strerror}") from e
    except ValueError as e:
        raise _bad("--machine", "a file in JSON (or TOML, if so named)", f"{path}: {e}") from e
    return from_dict(given)


def from_dict(given: object) -> Machine:
    """The machine described by these keys. Raises ArgumentError, which names the field that is wrong."""
    made: Machine = _made(Machine, given, "machine")
    if [*made.caches] != sorted({*made.caches}):
        raise _bad("machine.caches", "bytes in ascending order", repr([*made.caches]))
    if made.placement not in PLACEMENTS:
        raise _bad("machine.placement", " or ".join(PLACEMENTS), repr(made.placement))
    gaps = {f"levels[{i}].gap": level.gap for i, level in enumerate(made.levels)}
    for name, rate in {**gaps, "reduction": made.reduction, "copy": made.copy}.items():
        if isinstance(rate, tuple) and len(rate) != len(made.caches) + 1:
            expected = f"one rate, or {len(made.caches) + 1}: one more than machine.caches"
            raise _bad(f"machine.{name}", expected, repr([*rate]))
    for i, level in enumerate(made.levels):
        where, network = f"machine.levels[{i}]", level.network
        if level.ranks is None and i + 1 < len(made.levels):
            raise _bad(f"{where}.ranks", "a whole number, as the level is not the outermost one", "None")
        if level.ranks is not None and level.ranks % made.below(i):
            raise _bad(f"{where}.ranks", f"a multiple of the {made.below(i)} of the level inside it", str(level.ranks))
        units = None if network is None else network.most
        if units is not None and level.ranks is not None and level.ranks > units * made.below(i):
            expected = f"at most the {units * made.below(i)} ranks that network.dims holds"
            raise _bad(f"{where}.ranks", expected, str(level.ranks))
        if isinstance(network, FatTree):
            if any(upper % lower or upper == lower for lower, upper in pairwise(network.units)):
                raise _bad(f"{where}.network.units", "each a multiple of the one before", repr([*network.units]))
            if len(network.uplinks) != len(network.units):
                expected = f"{len(network.units)} numbers, one for each of units"
                raise _bad(f"{where}.network.uplinks", expected, repr([*network.uplinks]))
    return made


def _made(of: type[Any], given: object, where: str) -> Any:
    """An object of the class, whose fields have the given values. One that is left out has its default."""
    known, types = {f.name: f for f in fields(of)}, get_type_hints(of)
    if not isinstance(given, Mapping):
        raise _bad(where, "a table of " + ", ".join(known), repr(given))
    for key in given:
        if key not in known:
            raise _bad(f"{where}.{key}", "no such field; there are " + ", ".join(known), repr(given[key]))
    found = {}
    for name, field in known.items():
        if name not in given and field.default is MISSING:
            raise _bad(f"{where}.{name}", "to be given", "nothing")
        if name in given and field.init:
            found[name] = _value(types[name], given[name], f"{where}.{name}")
    return of(**found)


_LEAST = {"eager": 0, "dims": 2}  # the least number of a field, where that is not 1


def _value(kind: Any, given: Any, name: str) -> Any:
    """The value of a field of this type."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if given is None and NoneType in kinds:
        return None
    if FatTree in kinds:
        known = {each.kind: each for each in NETWORKS}
        if not isinstance(given, Mapping):
            raise _bad(name, f"a table whose kind is {' or '.join(known)}", repr(given))
        if given.get("kind") not in known:
            raise _bad(f"{name}.kind", " or ".join(known), repr(given.get("kind")))
        return _made(known[given["kind"]], given, name)
    field, is_list = name.rpartition(".")[2], isinstance(given, list | tuple)
    several = next((get_args(each)[0] for each in kinds if get_origin(each) is tuple), None)
    if several is not None and (is_list or len(kinds) == 1):
        if not is_list or not (given or field == "caches"):
            raise _bad(name, "a list", repr(given))
        names_of = [f"{name}[{i}]" if is_dataclass(several) else name for i in range(len(given))]
        return tuple(_value(several, each, its) for each, its in zip(given, names_of, strict=True))
    if is_dataclass(kind):
        return _made(kind, given, name)  # type: ignore[arg-type]
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    least = _LEAST.get(field, 1)
    right, expected = {
        str: (isinstance(given, str), "a text"),
        bool: (isinstance(given, bool), "true or false"),
        int: (is_number and isinstance(given, int) and given >= least, f"a whole number, at least {least}"),
        float: (is_number and 0 <= given < float("inf"), "seconds, at least 0"),
    }[kinds[0]]
    if not right:
        raise _bad(name, expected, repr(given))
    return float(given) if kinds[0] is float else given


_DESCRIBED = Path(__file__).with_name("described")
MACHINES = {name: read(_DESCRIBED / f"{name}.toml") for name in ("laptop", "ethernet", "ib-h100")}

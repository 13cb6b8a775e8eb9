"""A machine as the cost model sees it: its levels from the inside out, and what the work of a rank costs.

Times are in seconds, rates in seconds per byte.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpicoll.algorithms.steps import Nodes
from mpicoll.analysis.cost.networks import NETWORKS, Dragonfly, FatTree, Network, Torus
from mpicoll.errors import ArgumentError

Ranks = NDArray[np.int64]
PLACEMENTS = ("block", "round-robin")

Rate = float | tuple[float, ...]
"""Seconds per byte. There are several if they depend on the cache that a vector fits into. The last one is for
memory."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A level, such as a node or the whole system. Two ranks talk at the innermost level that contains both.

    ``ranks`` is the number of ranks that one unit of the level holds. None means any number, which only the outermost
    level may have. A message of n bytes takes ``overhead + latency + n gap + overhead``. The overheads are work of the
    two ranks, which do it for one message after another. During n gap the message has a port to itself at each end.
    Each unit of the level below has ``ports`` ports to this level. Below the innermost level, a unit is a rank. The
    ports are dealt to the ranks of the unit in order: with 8 ports each of 8 ranks has its own, and 32 ranks share 1
    port. ``overlap`` says that a rank may reduce the first pieces of a message while the others are on their way. This
    needs something else than the core of the rank to move them. ``network`` has the links between the units of the
    level below. A message has each link on its path to itself during n gap, too. With None, only ports are shared.
    """

    name: str
    ranks: int | None
    latency: float
    gap: Rate
    overhead: float
    ports: int
    overlap: bool = True
    network: Network | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine. ``source`` says where its figures come from.

    ``reduction`` and ``copy`` are the time of a rank for each byte that it combines or copies. ``reduction_overhead``
    and ``copy_overhead`` are added for each reduction and copy, and ``step`` for each step with messages. Of several
    rates, the first is for vectors of up to ``caches[0]`` bytes, and so on. A message longer than ``eager`` bytes asks
    its receiver first, which answers when it has begun the step that receives it: this takes two more latencies. With
    None, no message asks. ``cores`` is the number of cores of each unit of the innermost level. With None, each rank
    has one of its own. ``placement`` is ``block``, which fills one unit after the other, or ``round-robin``, which
    deals the ranks over the units of each level.
    """

    name: str
    source: str
    levels: tuple[Level, ...]
    reduction: Rate
    copy: Rate
    reduction_overhead: float = 0.0
    copy_overhead: float = 0.0
    step: float = 0.0
    caches: tuple[int, ...] = ()
    eager: int | None = None
    cores: int | None = None
    placement: str = "block"

    @property
    def period(self) -> int:
        """The ranks of one unit below the outermost level. If they are placed in blocks, all units are alike."""
        return self.below(len(self.levels) - 1)

    @property
    def most(self) -> int | None:
        """How many ranks the machine holds. None means any number."""
        last = self.levels[-1]
        units = None if last.network is None else last.network.most
        return last.ranks if last.ranks is not None or units is None else units * self.period

    def nodes(self, size: int) -> Nodes:
        """The nodes of ``size`` ranks. They are the units of the level that is called node, or of the level below the
        outermost one. A machine of one level is a node."""
        if len(self.levels) == 1:
            return Nodes.one(size)
        level = next((level for level in self.levels[:-1] if level.name == "node"), self.levels[-2])
        return Nodes.named((self.positions(size) // _ranks(level)).tolist())

    def holding(self, size: int, nodes: int) -> Machine:
        """The machine with ``size`` ranks on so many nodes, all of them full.

        Raises ArgumentError where that cannot be."""
        if len(self.levels) != 2:
            raise _bad("--nodes", "a machine of two levels, nodes and what joins them, as ethernet", self.name)
        if size % nodes:
            raise _bad("--nodes", f"a number that divides the {size} ranks", str(nodes))
        node = replace(self.levels[0], ranks=size // nodes)
        return replace(self, levels=(node, self.levels[1]))

    def positions(self, size: int) -> Ranks:
        """The position of each of ``size`` ranks, counted from the inside out.

        Raises ArgumentError for more ranks than the machine holds.
        """
        if self.most is not None and size > self.most:
            raise ArgumentError("simulate", "-n", f"at most the {self.most} ranks of {self.name}", str(size))
        left = np.arange(size)
        if self.placement == "block":
            return left
        found, units = np.zeros(size, np.int64), -(-size // self.period)
        for i in range(len(self.levels) - 2, -1, -1):
            here = _ranks(self.levels[i])
            found += left % units * here
            left = left // units
            units = here // (_ranks(self.levels[i - 1]) if i else 1)
        return found + left

    def crowded(self, size: int) -> Machine:
        """The machine as ``size`` ranks find it. Where ranks share cores, what a core does takes as many times longer
        as there are ranks for each core of the fullest unit. A core also moves the bytes of the innermost level."""
        inner, *outer = self.levels
        units = np.zeros(size, np.int64) if inner.ranks is None else self.positions(size) // inner.ranks
        longer = 1.0 if self.cores is None else max(1.0, float(np.bincount(units).max()) / self.cores)
        if longer == 1:
            return self

        def slower(rate: Rate) -> Rate:
            return tuple(longer * each for each in rate) if isinstance(rate, tuple) else longer * rate

        levels = (replace(inner, gap=slower(inner.gap)), *outer)
        return replace(
            self,
            levels=tuple(replace(each, overhead=longer * each.overhead) for each in levels),
            reduction=slower(self.reduction),
            copy=slower(self.copy),
            reduction_overhead=longer * self.reduction_overhead,
            copy_overhead=longer * self.copy_overhead,
            step=longer * self.step,
        )

    def level(self, a: Ranks, b: Ranks) -> Ranks:
        """The number of the level at which positions ``a`` and ``b`` talk."""
        found = np.full(np.shape(a), len(self.levels) - 1)
        for i in range(len(self.levels) - 2, -1, -1):
            here = _ranks(self.levels[i])
            found[a // here == b // here] = i
        return found

    def port(self, level: int, at: Ranks, turn: Ranks) -> Ranks:
        """The port of the level that a position uses for the message number ``turn`` of a step."""
        below = self.below(level)
        ports = self.levels[level].ports
        if ports < below:
            return at // below * ports + at % below * ports // below
        mine = ports // below
        return at * mine + turn % mine

    def links(self, level: int, source: Ranks, target: Ranks, port: Ranks) -> Ranks:
        """The links of the level that messages between these positions take to this port, in their order: of shape
        (messages, links), with -1 where a path has no link."""
        network, whole = self.levels[level].network, self.levels[level].ranks
        if network is None:
            return np.empty((len(source), 0), np.int64)
        a, b = source // self.below(level), target // self.below(level)
        if whole is None:
            return network.path(a, b, port)
        units = whole // self.below(level)
        links = network.path(a % units, b % units, port)
        return np.where(links < 0, -1, links + (a // units)[:, None] * (links.max(initial=0) + 1))

    def below(self, level: int) -> int:
        """The ranks of one unit of the level inside this one. It is 1 for the innermost level."""
        return _ranks(self.levels[level - 1]) if level else 1

    def rate(self, rate: Rate, nbytes: float) -> float:
        """The rate for vectors of ``nbytes``, of several."""
        if not isinstance(rate, tuple):
            return rate
        return rate[sum(nbytes > most for most in self.caches)]

    def as_dict(self) -> dict[str, Any]:
        """The machine in the form that ``from_dict`` reads."""
        return asdict(self)


def _ranks(level: Level) -> int:
    assert level.ranks is not None
    return level.ranks


def read(path: Path) -> Machine:
    """The machine that a JSON or TOML file describes. Raises ArgumentError, which names the field."""
    try:
        text = path.read_text()
        given = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as e:
        raise _bad(
            "--machine", "the name of a machine, or a JSON or TOML file that describes one", f"{path}: {e.strerror}"
        ) from e
    except ValueError as e:
        raise _bad("--machine", "a file in JSON (or TOML, if so named)", f"{path}: {e}") from e
    return from_dict(given)


def from_dict(given: object) -> Machine:
    """The machine described by these keys. Raises ArgumentError, which names the field that is wrong."""
    values = _keys(Machine, given, "machine")
    levels, caches = values["levels"], _caches(values["caches"])
    if not isinstance(levels, list | tuple) or not levels:
        raise _bad("machine.levels", "a list of levels, from the inside out", repr(levels))
    found = tuple(_level(each, f"machine.levels[{i}]", i + 1 == len(levels), caches) for i, each in enumerate(levels))
    for i, (inner, outer) in enumerate(pairwise(found)):
        if outer.ranks is not None and outer.ranks % _ranks(inner):
            expected = f"a multiple of the {inner.ranks} of the level inside it"
            raise _bad(f"machine.levels[{i + 1}].ranks", expected, str(outer.ranks))
    if values["placement"] not in PLACEMENTS:
        raise _bad("machine.placement", " or ".join(PLACEMENTS), repr(values["placement"]))
    made = Machine(
        name=_text(values, "machine", "name"),
        source=_text(values, "machine", "source"),
        levels=found,
        reduction=_rate(values, "machine", "reduction", caches),
        copy=_rate(values, "machine", "copy", caches),
        reduction_overhead=_seconds(values, "machine", "reduction_overhead"),
        copy_overhead=_seconds(values, "machine", "copy_overhead"),
        step=_seconds(values, "machine", "step"),
        caches=caches,
        eager=None if values["eager"] is None else _whole(values, "machine", "eager", 0),
        cores=None if values["cores"] is None else _whole(values, "machine", "cores", 1),
        placement=values["placement"],
    )
    for i, level in enumerate(found):
        units = None if level.network is None else level.network.most
        if units is not None and level.ranks is not None and level.ranks > units * made.below(i):
            expected = f"at most the {units * made.below(i)} ranks that network.dims holds"
            raise _bad(f"machine.levels[{i}].ranks", expected, str(level.ranks))
    return made


def _level(given: object, where: str, outermost: bool, caches: tuple[int, ...]) -> Level:
    values = _keys(Level, given, where)
    if not isinstance(values["overlap"], bool):
        raise _bad(f"{where}.overlap", "true or false", repr(values["overlap"]))
    return Level(
        name=_text(values, where, "name"),
        ranks=None if outermost and values["ranks"] is None else _whole(values, where, "ranks", 1),
        latency=_seconds(values, where, "latency"),
        gap=_rate(values, where, "gap", caches),
        overhead=_seconds(values, where, "overhead"),
        ports=_whole(values, where, "ports", 1),
        overlap=values["overlap"],
        network=None if values["network"] is None else _network(values["network"], f"{where}.network"),
    )


def _network(given: object, where: str) -> Network:
    kinds = " or ".join(each.kind for each in NETWORKS)
    if not isinstance(given, Mapping):
        raise _bad(where, f"a table whose kind is {kinds}", repr(given))
    of = next((each for each in NETWORKS if each.kind == given.get("kind")), None)
    if of is None:
        raise _bad(f"{where}.kind", kinds, repr(given.get("kind")))
    values = _keys(of, given, where)
    hop = _seconds(values, where, "hop")
    if of is Torus:
        return Torus(dims=_wholes(values, where, "dims", 2), hop=hop)
    if of is Dragonfly:
        return Dragonfly(units=_whole(values, where, "units", 1), links=_whole(values, where, "links", 1), hop=hop)
    units, uplinks = (_wholes(values, where, name, 1) for name in ("units", "uplinks"))
    if any(upper % lower or upper == lower for lower, upper in pairwise(units)):
        raise _bad(f"{where}.units", "each a multiple of the one before", repr(values["units"]))
    if len(uplinks) != len(units):
        raise _bad(f"{where}.uplinks", f"{len(units)} numbers, one for each of units", repr(values["uplinks"]))
    return FatTree(units=units, uplinks=uplinks, hop=hop)


def _keys(of: type[Level | Machine | Network], given: object, where: str) -> dict[str, Any]:
    """The values of the fields. A field that is left out has its default."""
    if not isinstance(given, Mapping):
        raise _bad(where, "a table of " + ", ".join(f.name for f in fields(of)), repr(given))
    known: dict[str, Any] = {f.name: f.default for f in fields(of)}
    for key in given:
        if key not in known:
            raise _bad(f"{where}.{key}", "no such field; there are " + ", ".join(known), repr(given[key]))
    for name, default in known.items():
        if default is MISSING and name not in given:
            raise _bad(f"{where}.{name}", "to be given", "nothing")
    return {**known, **given}


def _text(values: Mapping[str, Any], where: str, name: str) -> str:
    if not isinstance(values[name], str):
        raise _bad(f"{where}.{name}", "a text", repr(values[name]))
    return str(values[name])


def _seconds(values: Mapping[str, Any], where: str, name: str) -> float:
    given = values[name]
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
        raise _bad(f"{where}.{name}", "seconds, at least 0", repr(given))
    return float(given)


def _rate(values: Mapping[str, Any], where: str, name: str, caches: tuple[int, ...]) -> Rate:
    given = values[name]
    if not isinstance(given, list | tuple):
        return _seconds(values, where, name)
    if len(given) != len(caches) + 1:
        raise _bad(f"{where}.{name}", f"one rate, or {len(caches) + 1}: one more than machine.caches", repr(given))
    return tuple(_seconds({name: each}, where, name) for each in given)


def _caches(given: object) -> tuple[int, ...]:
    if not isinstance(given, list | tuple):
        raise _bad("machine.caches", "a list of bytes", repr(given))
    found = tuple(_whole({"caches": each}, "machine", "caches", 1) for each in given)
    if list(found) != sorted(set(found)):
        raise _bad("machine.caches", "bytes in ascending order", repr(given))
    return found


def _wholes(values: Mapping[str, Any], where: str, name: str, least: int) -> tuple[int, ...]:
    given = values[name]
    if not isinstance(given, list | tuple) or not given:
        raise _bad(f"{where}.{name}", f"a list of whole numbers, each at least {least}", repr(given))
    return tuple(_whole({name: each}, where, name, least) for each in given)


def _whole(values: Mapping[str, Any], where: str, name: str, least: int) -> int:
    given = values[name]
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise _bad(f"{where}.{name}", f"a whole number, at least {least}", repr(given))
    return given


def _bad(field: str, expected: str, given: str) -> ArgumentError:
    return ArgumentError("simulate", field, expected, given)

"""A benchmark from its options to its report: opens the backends, measures every case, shows lines as they come."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from mpi4py import MPI

from mpicoll.bench import interruption, table
from mpicoll.bench.backends import Backend, Session, Unavailable, open_backend
from mpicoll.bench.environment import environment
from mpicoll.bench.figures import Line, Measurement, Note, Report
from mpicoll.bench.memory import Arena, arena_bytes
from mpicoll.bench.options import Options, bad
from mpicoll.bench.progress import Progress
from mpicoll.bench.rules import RULES, Case, Placement, Rule, elements
from mpicoll.bench.timing import Runner, measure

__all__ = ["open_session", "run", "sweep"]

T = TypeVar("T")


def run(options: Options, world: MPI.Intracomm) -> Report:
    """Measure what the options ask for. Collective over ``world``; rank 0 prints."""
    session = open_session(world, options.device)
    backends, notes = open_backends(lines_of(options, session), session)
    report = Report(options.command(), _now(), _settings(options), environment(session), notes)
    try:
        sweep(options, session, backends, report)
    finally:
        for backend in reversed(backends.values()):
            backend.close()
    return report


def open_session(world: MPI.Intracomm, device: str) -> Session:
    """A session over a duplicate of ``world``. The ranks of a node take its GPUs in turn."""
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    if device == "cpu":
        return Session(world.Dup(), node, "cpu")
    if find_spec("torch") is None:
        raise bad("--device", "torch with CUDA to be installed for cuda", "an environment without torch")
    import torch

    if not torch.cuda.is_available():
        raise bad("--device", "a CUDA GPU that torch can use, for cuda", "a machine without one")
    torch.cuda.set_device(node.rank % torch.cuda.device_count())
    return Session(world.Dup(), node, f"cuda:{torch.cuda.current_device()}")


def lines_of(options: Options, session: Session) -> list[str]:
    """The lines of the table: the backends, with mpicoll's algorithms in the place of mpicoll where they are named."""
    names = list(options.backends) or ["mpicoll", "mpi"]
    if not options.backends and find_spec("torch") is not None:
        names += ["gloo", "nccl"] if session.on_gpu else ["gloo"]
    return [
        line
        for name in names
        for line in ([f"mpicoll:{a}" for a in options.algorithms] or [name] if name == "mpicoll" else [name])
    ]


def open_backends(lines: Sequence[str], session: Session) -> tuple[dict[str, Backend], list[Note]]:
    """The backends that run here, and a note for each that does not."""
    backends, notes = {}, []
    for line in lines:
        opened, reason = agreed(session, partial(open_backend, line, session))
        if opened is None:
            notes.append(Note(line, reason))
        else:
            backends[line] = opened
    return backends, notes


def agreed(session: Session, attempt: Callable[[], T]) -> tuple[T | None, str]:
    """What the attempt gave if it succeeded on every rank, or None and the first rank's reason."""
    found, reason = None, ""
    try:
        found = attempt()
    except Unavailable as e:
        reason = str(e)
    except Exception as e:  # a library's own refusal, such as gloo's of an operation
        reason = _in_a_line(e)
    reasons = [r for r in session.world.allgather(reason) if r]
    return (None, reasons[0]) if reasons else (found, "")


def _in_a_line(e: Exception) -> str:
    """What an exception says, without the places of files. NCCL's own words come after "Last error:"."""
    lines = (str(e).strip() or type(e).__name__).partition("Last error:")
    text = (lines[2].strip() or lines[0]).splitlines()[0]
    return re.sub(r"(/[\w.+-]+)+/", "", text)[:160]


@dataclass
class _Sweep:
    """What one collective's sizes share."""

    options: Options
    session: Session
    backends: dict[str, Backend]
    report: Report
    arena: Arena
    rule: Rule

    def lines(self, size: int) -> list[Line]:
        """Measure one size on all backends."""
        runners: dict[tuple[str, Placement], Runner] = {}
        for placement in self.rule.placements:
            for name in self.backends:
                runner = self._runner(name, _case(self.options, self.session, self.rule, size, placement))
                if runner is not None:
                    runners[name, placement] = runner
        if runners:
            measure(self.session.world, list(runners.values()), self.options.seconds)
        found: dict[str, dict[Placement, Measurement]] = {name: {} for name in self.backends}
        for (name, placement), runner in runners.items():
            case = runner.slots[0].case
            route = self.backends[name].route(case)
            found[name][placement] = Measurement(case, name, route, runner.times, runner.wrong)
        first = found[next(iter(found))] if found else {}
        usual = _case(self.options, self.session, self.rule, size, self.rule.placements[0])
        return [Line(name, usual, by, first) for name, by in found.items() if by]

    def _runner(self, name: str, case: Case) -> Runner | None:
        """The backend's calls on each slot, tried once; None, with a note, where it refuses."""
        if any((n.backend, n.collective, n.placement) == (name, case.name, case.placement) for n in self.report.notes):
            return None

        runner, reason = agreed(self.session, lambda: self._bound(name, case))
        if runner is not None:
            _, reason = agreed(self.session, partial(runner.batch, self.session.world, 1))
        if reason:
            self.report.notes.append(Note(name, reason, case.name, case.placement))
        return None if reason else runner

    def _bound(self, name: str, case: Case) -> Runner:
        slots = self.arena.slots(case)
        return Runner(slots, [self.backends[name].bind(slot) for slot in slots])


def sweep(options: Options, session: Session, backends: dict[str, Backend], report: Report) -> None:
    """Measure every collective and size, adding to the report and printing on rank 0."""
    rules = [RULES[name] for name in options.collectives]
    _check_room(options, session, rules)
    arena = Arena(session.device)
    width = max(map(len, backends), default=0)
    sizes = {rule.name: options.sizes if rule.sized else [0] for rule in rules}
    with Progress(sum(map(len, sizes.values())), session.world.rank == 0) as progress:
        progress.write(table.header(report))
        progress.write(_how_long(options, sum(map(len, sizes.values()))))
        for rule in rules:
            known = len(report.notes)
            progress.write(table.heading(rule, width, options.wide))
            part = _Sweep(options, session, backends, report, arena, rule)
            for size in sizes[rule.name]:
                if interruption.seen(session.world):
                    report.interrupted = True
                    break
                progress.at(f"{rule.name} {size}")
                lines = part.lines(size)
                report.lines += lines
                for line in lines:
                    progress.write(table.row(line, width, options.wide))
                progress.step()
            for note in table.merged(report.notes[known:]):
                progress.write(f"# {note}")
            if report.interrupted:
                break
        progress.write(table.footer(report))


def _how_long(options: Options, sizes: int) -> str:
    seconds = sizes * options.seconds
    about = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.2g} s"
    return f"# about {about} for {sizes} sizes, {options.seconds:g} s each; long calls take longer"


def _case(options: Options, session: Session, rule: Rule, size: int, placement: Placement) -> Case:
    ranks = session.world.size
    count = elements(rule, size, options.dtype, ranks)
    return Case(
        rule, count, options.dtype, options.op, options.root, session.world.rank, ranks, placement, session.device
    )


def _check_room(options: Options, session: Session, rules: Sequence[Rule]) -> None:
    """Raise ArgumentError where the node has not the memory that its ranks need for the largest case."""
    cases = [_case(options, session, rule, options.high, p) for rule in rules for p in rule.placements]
    need = arena_bytes(cases)
    free = session.world.allreduce(_free_memory(), MPI.MIN)
    if not session.on_gpu and need * session.node.size > free:
        raise bad(
            "--max",
            f"buffers of {session.node.size} ranks that fit into the {free >> 20} MiB free on a node",
            f"{options.high} bytes, for which they need {need * session.node.size >> 20} MiB",
        )


def _free_memory() -> int:
    """Bytes that this machine can give; where it does not say, no limit."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        found = None
    return int(found[1]) << 10 if found else 1 << 62


def _settings(options: Options) -> dict[str, Any]:
    found = {k: v for k, v in asdict(options).items() if k not in ("json", "csv", "plot", "wide")}
    return found | {"dtype": options.dtype.name, "sizes": options.sizes}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

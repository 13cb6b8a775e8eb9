"""A benchmark from its options to its report: measures every size of every collective and prints lines as they come."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

from mpi4py import MPI

from mpicoll.algorithms.collectives import COLLECTIVES, Collective
from mpicoll.bench import table
from mpicoll.bench.backends import Backend, Unavailable, open_backend
from mpicoll.bench.cases import PLACEMENTS, Case, Placement, elements
from mpicoll.bench.memory import Arena, arena_bytes
from mpicoll.bench.options import Options, bad
from mpicoll.bench.records import Note, Report, Row, grouped, measured, rated
from mpicoll.bench.session import Session, environment, open_session
from mpicoll.bench.timing import Runner, measure
from mpicoll.errors import ArgumentError, MpicollError
from mpicoll.machine.system import free_memory

T = TypeVar("T")


def run(options: Options, world: MPI.Intracomm) -> Report:
    """Measure what the options ask for. Collective over ``world``. Rank 0 prints."""
    session = open_session(world, options.device)
    backends, notes = open_backends(lines_of(options, session), session)
    found = environment(session)
    settings = options.measures() | {"dtype": options.dtype.name, "sizes": options.sizes}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    report = Report(options.command(), now, settings, found, notes)

    def stop(*_: object) -> None:
        report.interrupted = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        Sweep(options, session, backends, report).run()
    finally:
        signal.signal(signal.SIGINT, before)
        for backend in reversed(backends.values()):
            backend.close()
    return report


class Sweep:
    """Measures every collective and size. Adds the rows to the report, and prints them on rank 0."""

    def __init__(self, options: Options, session: Session, backends: dict[str, Backend], report: Report) -> None:
        self.options, self.session, self.backends, self.report = options, session, backends, report
        arena = Arena(session.device)
        self.arenas = {n: Arena(session.device, it.new) if it.new else arena for n, it in backends.items()}
        """By the backend, where its buffers are."""

    def run(self) -> None:
        collectives = [COLLECTIVES[name] for name in self.options.collectives]
        self._check_room(collectives)
        self._say(table.header(self.report))
        for collective in collectives:
            self._measure(collective)
            if self.report.interrupted:
                break
        self._say(table.footer(self.report))

    def _measure(self, collective: Collective) -> None:
        """Measure all sizes of a collective."""
        report, known = self.report, len(self.report.notes)
        self._say(table.heading(collective))
        for size in self.options.sizes_of(collective):
            report.interrupted = self.session.world.bcast(report.interrupted)  # a signal may come earlier elsewhere
            if report.interrupted:
                break
            rows = self._rows(collective, size)
            report.rows += rows
            for of_backend in grouped(rows, "backend").values():
                self._say(table.line(of_backend))
        for note in table.merged(report.notes[known:]):
            self._say(f"# {note}")
        for said in table.routes([row for row in report.rows if row.collective == collective.name]):
            self._say(said)

    def _say(self, text: str) -> None:
        if self.session.world.rank == 0:
            print(text, flush=True)

    def _rows(self, collective: Collective, size: int) -> list[Row]:
        """Measure one size on all backends."""
        cases = [_case(self.options, self.session, collective, size, p) for p in PLACEMENTS[collective.name]]
        tried = [(name, self._runner(name, case)) for case in cases for name in self.backends]
        runners = [(name, runner) for name, runner in tried if runner is not None]
        if runners:
            measure(self.session.world, [runner for _, runner in runners], self.options.seconds)
        order = [*self.backends]
        rows = [
            measured(it.case, name, "; ".join(it.routes), it.times, it.wrong)
            for name, it in sorted(runners, key=lambda both: order.index(both[0]))
        ]
        return rated(rows, order[0]) if rows else []

    def _runner(self, name: str, case: Case) -> Runner | None:
        """The backend's calls on each pair of buffers, tried once. None if the backend refuses; a note says why."""
        if any((n.backend, n.collective, n.placement) == (name, case.name, case.placement) for n in self.report.notes):
            return None

        def bound() -> Runner:
            pairs, backend = self.arenas[name].buffers(case), self.backends[name]
            return Runner(pairs, [backend.bind(pair) for pair in pairs], backend.route)

        runner, reason = agreed(self.session, bound)
        if runner is not None:
            _, reason = agreed(self.session, partial(runner.batch, self.session.world, 1))
        if reason:
            self.report.notes.append(Note(name, reason, case.name, case.placement))
        return None if reason else runner

    def _check_room(self, collectives: Sequence[Collective]) -> None:
        """Raise ArgumentError if a node does not have the memory that its ranks need for the largest case."""
        options, session = self.options, self.session
        largest = [(c, options.sizes_of(c)[-1]) for c in collectives]
        cases = [_case(options, session, c, size, p) for c, size in largest for p in PLACEMENTS[c.name]]
        arenas = 1 + sum(backend.new is not None for backend in self.backends.values())
        need = arenas * arena_bytes(cases)
        free = session.world.allreduce(_free_memory(session), MPI.MIN)
        ranks, where = (session.sharing, "GPU") if session.on_gpu else (session.node.size, "node")
        if need * ranks > free:
            expected = f"buffers of {ranks} ranks that fit into the {free >> 20} MiB free on a {where}"
            raise bad("--max", expected, f"{options.max} bytes, for which they need {need * ranks >> 20} MiB")


def _case(options: Options, session: Session, collective: Collective, size: int, placement: Placement) -> Case:
    rank, ranks = session.world.rank, session.world.size
    count = elements(collective, size, options.dtype, ranks)
    return Case(
        collective, count, options.dtype, options.op, options.root, rank, ranks, placement, session.device,
        session.sharing,
    )  # fmt: skip


def _free_memory(session: Session) -> int:
    """Bytes that this machine or this rank's GPU can give: all it has if the system does not say what is free."""
    if session.on_gpu:
        import torch

        return int(torch.cuda.mem_get_info()[0])
    found = free_memory()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if found is None else found


def lines_of(options: Options, session: Session) -> list[str]:
    """The lines of the table: the backends. If algorithms are named, each of them is a line instead of ``mpicoll``."""
    names = list(options.backends) or ["mpicoll", "mpi"]
    if not options.backends and find_spec("torch") is not None:
        names += ["gloo", "nccl"] if session.on_gpu else ["gloo"]
    algorithms = [f"mpicoll:{each}" for each in options.algorithms]
    return [line for name in names for line in (algorithms if algorithms and name == "mpicoll" else [name])]


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
    """The attempt's result if all ranks succeeded, else None and the reason of the first that failed. Collective."""
    found, reason = None, ""
    try:
        found = attempt()
    except MpicollError as e:
        if isinstance(e, ArgumentError) and e.operation == "mpicoll":
            raise  # a setting of the user's is wrong, as MPICOLL_ALGORITHM: then nothing is to be measured
        reason = str(e).splitlines()[0]
    except Unavailable as e:
        reason = str(e)
    except Exception as e:  # what a library itself raises, as gloo does for an operation that it does not have
        lines = (str(e).strip() or type(e).__name__).partition("Last error:")  # NCCL's own words come after that
        reason = re.sub(r"(/[\w.+-]+)+/", "", (lines[2].strip() or lines[0]).splitlines()[0])[:160]  # without paths
    reasons = [r for r in session.world.allgather(reason) if r]
    return (None, reasons[0]) if reasons else (found, "")

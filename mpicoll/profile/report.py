"""What a recording cost, as text of 100 columns; and when, as a picture: a band for each rank, and in it what the
program and asynchronous calls did."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from pathlib import Path
from typing import Any

from mpicoll.analysis.palette import styles
from mpicoll.bench.plot import SETTINGS, WIDTH, legend
from mpicoll.errors import ArgumentError
from mpicoll.profile.costs import Costs
from mpicoll.profile.recording import ASYNCHRONOUS, Recording, Span
from mpicoll.units import count, duration, named

_MOST = 10  # lines of the program that are listed, and ranks
_NO_CALLS = """\
It has no calls. Not recorded are communicators of one rank, those of mpicoll.threads, and those with check="off". Calls
of mpi4py, and of torch over gloo, are recorded where they are watched: mpicoll run --watch, or MPICOLL_WATCH=1."""
_RANKS = "{:<8} {:>10} {:>10} {:>10} {:>5}  {:>10} {:>10}"
_SITES = "{:>10} {:>5} {:>10} {:>10} {:>7}  {}"
_BAND = "#f1f3f4"
"""Behind every other rank."""
_EXPOSED, _HIDDEN = 0.7, 0.25  # the heights of bars: while the program is in the call, and while it goes on


def text(name: str, recording: Recording, costs: Costs) -> str:
    lines = [_first_line(name, recording), ""]
    if not recording.calls:
        return f"{lines[0]}\n{_NO_CALLS}"
    lines += ["Where each rank's time went. Late: exposed before the ranks whose data it needed had arrived."]
    lines += [_RANKS.format("", "time", "computing", "exposed", "", "of it late", "hidden")]
    shown = costs.ranks if len(costs.ranks) <= _MOST else sorted(costs.ranks, key=lambda each: -each.exposed)[:_MOST]
    for of in shown:
        share = f"{of.exposed / of.time:.0%}" if of.time else ""
        figures = _time(of.time), _time(of.computing), _time(of.exposed), share, _time(of.late), _time(of.hidden)
        lines.append(_RANKS.format(f"rank {of.rank}", *figures))
    lines += _more(len(costs.ranks) - len(shown), "rank", "with less exposed time")
    lines += ["", "Which lines of the program cost most, on all ranks together."]
    lines += [_SITES.format("exposed", "", "of it late", "hidden", "calls", "call")]
    everything = sum(each.time for each in costs.ranks)
    for site in costs.sites[:_MOST]:
        share = f"{site.exposed / everything:.0%}"
        spent = _time(site.exposed), share, _time(site.late), _time(site.hidden), site.calls
        lines.append(_SITES.format(*spent, f"{site.kind}, at {site.site}"))
    lines += _more(len(costs.sites) - _MOST, "line", "that cost less")
    lines.append("")
    total = sum(costs.last.values())
    if total >= 0.01 * everything:
        worst = sorted(costs.last.items(), key=lambda each: -each[1])[:3]
        said = ", ".join(f"{_time(time)} for rank {rank}" for rank, time in worst if time >= 0.1 * total)
        lines.append(f"Ranks waited {_time(total)} for others that came late ({total / everything:.0%}): {said}.")
    return "\n".join(lines).rstrip()


def _first_line(name: str, recording: Recording) -> str:
    ranks = [*recording.spans]
    who = count(len(ranks), "rank") if len(ranks) == recording.size else f"{named(ranks)} of {recording.size}"
    nodes = count(len({*recording.hosts.values()}), "node")
    longest = max((until - since for since, until in recording.spans.values()), default=0.0)
    left = sum(not call.is_over for call in recording.calls)
    unfinished = f", {left} of them under way at its end" if left else ""
    return f"{name}: {count(len(recording.calls), 'call')} of {who} on {nodes} in {_time(longest)}{unfinished}"


def _more(number: int, noun: str, which: str) -> list[str]:
    return [f"... and {count(number, f'more {noun}')} {which}"] if number > 0 else []


def _time(us: float) -> str:
    return duration(us / 1e6)


def draw(recording: Recording, file: Path, last: float | None) -> None:
    """Draw it, or its last milliseconds alone. The name of the file chooses the format. Raises ArgumentError."""
    if last is not None and not 0 < last < inf:
        raise ArgumentError("report", "--last", "a positive number of milliseconds", str(last))
    import matplotlib
    from matplotlib.figure import Figure

    end = max(until for _, until in recording.spans.values())
    begin = min(since for since, _ in recording.spans.values()) if last is None else end - last * 1e3
    # A row is a rank's program, or its thread of asynchronous calls. The bars of a call in it have one height.
    alike: defaultdict[tuple[str, tuple[int, bool], float], list[Span]] = defaultdict(list)
    for call in recording.calls:
        if call.complete >= begin:
            asynchronous = call.thread == ASYNCHRONOUS
            alike[call.kind, (call.rank, asynchronous), _HIDDEN].append(call.under_way)
            if asynchronous:
                alike[call.kind, (call.rank, True), _EXPOSED].append(call.method)
            alike[call.kind, (call.rank, False), _EXPOSED] += call.exposed
    rows = sorted({row for _, row, _ in alike})
    looks = styles(kind for kind, _, _ in alike)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, 1), dpi=200, layout="constrained")
        axes = figure.subplots()
        handles: dict[str, Any] = {}
        for (kind, row, height), bars in alike.items():
            color, where = looks[kind].color, (rows.index(row) - height / 2, height)
            shown = [((since - begin) / 1e3, (until - since) / 1e3) for since, until in bars]
            handles[kind] = axes.broken_barh(shown, where, facecolors=color, edgecolors=color)
        for at, (rank, _) in enumerate(rows):
            if rank % 2:
                axes.axhspan(at - 0.5, at + 0.5, color=_BAND, zorder=0)
        names = [f"rank {rank}{f': {ASYNCHRONOUS}' if thread else ''}" for rank, thread in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, (end - begin) / 1e3)
        axes.set_xlabel("milliseconds")
        figure.set_figheight(0.35 * len(rows) + 0.9 + legend(figure, handles))
        figure.savefig(file)

"""Which pattern of messages makes the fastest all-reduce?

This program times the four all-reduces of own_all_reduce.py ("own"), and mpicoll's algorithms with the same patterns.
Beside the times it prints what the cost model predicts. Start it with

    mpicoll run -n 4 examples/compare_topologies.py

Without a launcher, it runs with ranks that are threads of one process:

    python examples/compare_topologies.py --threads 4
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from time import perf_counter

import torch
from own_all_reduce import ALL_REDUCES

import mpicoll
import mpicoll.torch as dist
from mpicoll.analysis.cost.machines import Level, Machine
from mpicoll.analysis.cost.simulation import costs

SIDES = (16, 128, 512, 1024)
"""A tensor has side x side elements of float32: 1 KiB to 4 MiB."""
ALGORITHMS = {"naive": "linear", "tree": "binomial_tree", "ring": "ring", "butterfly": "recursive_doubling"}
"""mpicoll's names of these patterns."""
REPEATS = 10
"""Calls, of which the fastest counts: disturbances only add time."""

Times = dict[str, dict[str, list[float]]]
"""Microseconds for each side, by kind ("own", "mpicoll", "model") and pattern. "default" is what mpicoll chooses."""


def slowest(call: Callable[[torch.Tensor], object], side: int) -> float:
    """Microseconds of the fastest call. A call takes as long as on its slowest rank."""
    took = []
    x = torch.empty(side, side)  # the same memory for all calls: mpicoll prepares a call on new memory
    for _ in range(REPEATS):
        x.fill_(dist.get_rank())
        dist.barrier()
        began = perf_counter()
        call(x)
        mine = torch.tensor([1e6 * (perf_counter() - began)], dtype=torch.float64)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        took.append(mine.item())
        assert torch.all(x == sum(range(dist.get_world_size())))
    return min(took)


def measured(sides: Sequence[int]) -> Times:
    """The times of the own all-reduces and of mpicoll's."""

    def named(algorithm: str | None) -> Callable[[torch.Tensor], object]:
        return lambda x: dist.all_reduce(x, algorithm=algorithm)

    library = {**{name: named(algorithm) for name, algorithm in ALGORITHMS.items()}, "default": named(None)}
    calls: dict[str, Mapping[str, Callable[[torch.Tensor], object]]] = {"own": ALL_REDUCES, "mpicoll": library}
    return {
        kind: {name: [slowest(call, side) for side in sides] for name, call in which.items()}
        for kind, which in calls.items()
    }


def one_way(n: int) -> float:
    """Seconds that n floats take to a neighbour, while all pairs of neighbours send them back and forth."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, took = torch.zeros(n), []
    for _ in range(REPEATS if rank ^ 1 < size else 0):
        began = perf_counter()
        for turn in (0, 1):
            if rank % 2 == turn:
                dist.send(x, rank ^ 1)
            else:
                dist.recv(x, rank ^ 1)
        took.append((perf_counter() - began) / 2)
    return min(took, default=0.0)


def probed() -> tuple[float, float, float]:
    """This machine in three numbers: the cost in seconds of a message, of each of its bytes, and of adding a byte."""
    n = 1 << 18
    message = one_way(1)
    gap = max(0.0, one_way(n) - message) / (4 * n)
    x, y, took = torch.zeros(n), torch.zeros(n), []
    for _ in range(REPEATS):
        began = perf_counter()
        x += y
        took.append(perf_counter() - began)
    return message, gap, min(took) / (4 * n)


def machine(message: float, gap: float, adding: float) -> Machine:
    """The model's description of a machine with these numbers."""
    # Without a network between the ranks, most of the cost of a message is work at its two ends.
    node = Level(name="here", ranks=None, latency=0.0, gap=gap, overhead=message / 2, ports=1, overlap=False)
    # A copy takes about as long as adding.
    return Machine(name="here", source="measured", levels=(node,), reduction=adding, copy=adding)


def predicted(sides: Sequence[int], here: Machine) -> dict[str, list[float]]:
    """The microseconds that the model predicts."""
    nbytes = [4 * side * side for side in sides]
    return {
        name: [1e6 * s for s in costs("allreduce", algorithm, dist.get_world_size(), here, nbytes).seconds]
        for name, algorithm in ALGORITHMS.items()
    }


def table(times: Times, sides: Sequence[int]) -> str:
    """A row for each side. A star marks the fastest pattern of each kind."""
    head = "".join(f"{name:>15}{'':9}" for name in ALGORITHMS)
    kinds = "".join(f" {kind:>6} " for kind in times)
    lines = [f"{'':10}{head}".rstrip(), f"{'side':>5}{'KiB':>5}{kinds * len(ALGORITHMS)}  default"]
    for i, side in enumerate(sides):
        best = {kind: min(which[name][i] for name in ALGORITHMS) for kind, which in times.items()}
        row = f"{side:5}{4 * side * side / 1024:5.0f}"
        for name in ALGORITHMS:
            for kind, which in times.items():
                row += f" {which[name][i]:6.0f}{'*' if which[name][i] == best[kind] else ' '}"
        lines.append(f"{row}{times['mpicoll']['default'][i]:9.0f}")
    return "\n".join(lines)


def draw(times: Times, sides: Sequence[int], path: str) -> None:
    """Draw the times, with a panel for each kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    nbytes = [4 * side * side for side in sides]
    for axes, (kind, which) in zip(figure.subplots(1, 3, sharey=True), times.items(), strict=True):
        for (name, found), marker in zip(which.items(), "os^Dx", strict=False):
            axes.loglog(nbytes, found, marker=marker, label=name)
        axes.set(title=kind, xlabel="bytes")
        axes.legend(frameon=False)
    figure.axes[0].set_ylabel(f"microseconds, {dist.get_world_size()} ranks")
    figure.savefig(path, dpi=120)


def main(comm: object = None, sides: Sequence[int] = SIDES, plot: str | None = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    is_first = dist.get_rank() == 0
    if is_first:
        title = f"{dist.get_world_size()} ranks, all-reduce of float32, microseconds; * is the fastest of its kind"
        print(title, flush=True)  # before the minutes that a slow machine may take
    message, gap, adding = probed()
    if is_first:
        model = f"a message costs {1e6 * message:.1f} us and {1e9 * gap:.3f} ns a byte, "
        model += f"adding {1e9 * adding:.3f} ns a byte"
        print(f"the model: {model}", flush=True)
    times = {**measured(sides), "model": predicted(sides, machine(message, gap, adding))}
    if is_first:
        print(table(times, sides))
        if plot and find_spec("matplotlib"):
            draw(times, sides, plot)
        elif plot:
            print(f"{plot} is not drawn: matplotlib is not installed")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare patterns of an all-reduce.")
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES, help="sides of the square tensors")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture, if matplotlib is installed")
    parser.add_argument("--threads", type=int, metavar="N", help="run as N ranks that are threads of this process")
    given = parser.parse_args()
    if given.threads is None:
        main(None, given.sides, given.plot)
    else:
        with mpicoll.threads(given.threads) as ranks:
            ranks.run(main, given.sides, given.plot)

"""The study of MPI and NCCL on the same GPUs: all collectives, in float32 and bfloat16, from 8 bytes to 1 GiB.

    python benchmarks/mpi_vs_nccl/study.py --device cuda -n 4 --out FOLDER

Each collective in each dtype is a part: one `mpicoll bench`, whose record is kept in FOLDER/parts. If the study is cut,
the same command goes on with the parts that are missing. A part that fails, or does not end, is named in the report,
and the others go on. README.md says what the folder has at the end. `--device cpu` runs all of it without a GPU, on
short vectors.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.bench import comparison
from mpicoll.bench.records import load
from mpicoll.errors import ArgumentError
from mpicoll.jobs.spawn import end
from mpicoll.units import nbytes

SIZES = {"cuda": ("1G", "4", "1.5"), "cpu": ("256K", "32", "0.1")}
"""The largest size, the factor and the seconds for each size, by device."""
SECONDS_TO_END = 20.0
"""What a benchmark may take to end its ranks."""


@dataclass(frozen=True)
class Part:
    """One benchmark of the study."""

    collective: str
    dtype: str
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.collective}-{self.dtype}"

    @property
    def record(self) -> Path:
        return self.folder / f"{self.name}.json"

    def command(self, asked: argparse.Namespace) -> list[str]:
        words = [sys.executable, "-m", "mpicoll", "bench", self.collective, "--dtype", self.dtype]
        words += ["-n", str(asked.n), "--device", asked.device, "--backends", asked.backends]
        words += ["--max", asked.max, "--factor", asked.factor, "--seconds", asked.seconds]
        return [*words, "--json", str(self.record)]

    def is_done(self, asked: argparse.Namespace) -> bool:
        """Whether there is a record of what is asked for, of all sizes."""
        if not self.record.exists():
            return False
        record = load(self.record)
        wanted = {"max": nbytes(asked.max), "factor": int(asked.factor), "ranks": asked.n, "device": asked.device}
        return not record.interrupted and all(record.settings[key] == value for key, value in wanted.items())

    def measure(self, asked: argparse.Namespace) -> str:
        """Run the benchmark, and say how it ended. What it prints goes to a file beside the record."""
        self.record.unlink(missing_ok=True)
        with (self.folder / f"{self.name}.txt").open("w") as output:
            process = subprocess.Popen(
                self.command(asked), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                code = process.wait(asked.deadline)
            except subprocess.TimeoutExpired:
                end(process, SECONDS_TO_END)
                return f"no end within {asked.deadline:g} s"
            except KeyboardInterrupt:  # the benchmark has it, too, and ends after the size under way
                process.wait()
                raise
            except BaseException:
                end(process, SECONDS_TO_END)
                raise
        return "done" if code == 0 else f"ended with {code}"


def parts(asked: argparse.Namespace) -> Iterator[Part]:
    """All benchmarks of the study."""
    names = COLLECTIVES if asked.collectives == "all" else asked.collectives.split(",")
    for dtype in asked.dtypes.split(","):
        for name in names:
            yield Part(name, dtype, asked.out / comparison.PARTS)


def run(asked: argparse.Namespace) -> bool:
    """Measure the parts that are missing. Returns False if Ctrl-C ended it."""
    every = list(parts(asked))
    for i, part in enumerate(every, 1):
        where = f"{i} of {len(every)}: {part.name}"
        if part.is_done(asked):
            print(f"{where}: is there", flush=True)
            continue
        began = time.monotonic()
        try:
            how = part.measure(asked)
        except KeyboardInterrupt:
            print(f"{where}: interrupted. The same command goes on from here.", flush=True)
            return False
        print(f"{where}: {how}, {time.monotonic() - began:.0f} s", flush=True)
    return True


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cuda", help="where the buffers are (cuda)")
    parser.add_argument("-n", type=int, default=2, metavar="RANKS", help="how many ranks to start (2)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where everything is written")
    parser.add_argument("--collectives", default="all", metavar="NAMES", help="some of the collectives (all)")
    parser.add_argument("--dtypes", default="float32,bfloat16", metavar="NAMES", help="(float32,bfloat16)")
    parser.add_argument("--backends", default="mpicoll,mpi,nccl,gloo", metavar="NAMES", help="(mpicoll,mpi,nccl,gloo)")
    parser.add_argument("--max", metavar="BYTES", help="the largest size (1G on GPUs, 256K on CPUs)")
    parser.add_argument("--factor", metavar="N", help="from one size to the next (4 on GPUs, 32 on CPUs)")
    parser.add_argument("--seconds", metavar="S", help="to measure one size (1.5 on GPUs, 0.1 on CPUs)")
    parser.add_argument("--deadline", type=float, default=1200.0, metavar="S", help="for one part (1200)")
    asked = parser.parse_args()
    high, factor, seconds = SIZES[asked.device]
    asked.max, asked.factor, asked.seconds = asked.max or high, asked.factor or factor, asked.seconds or seconds
    return asked


def main() -> int:
    asked = options()
    (asked.out / comparison.PARTS).mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    complete = run(asked)
    try:
        code = comparison.report(asked.out)
    except ArgumentError as e:  # no part has a record
        print(f"mpicoll: {e}", file=sys.stderr)
        code = 1
    return code if complete else 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())

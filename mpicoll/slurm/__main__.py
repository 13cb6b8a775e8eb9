"""``python -m mpicoll.slurm SITE``: what a job script runs to start ranks, with this preset of the network."""

from __future__ import annotations

import sys

from mpicoll.errors import ArgumentError
from mpicoll.slurm import sbatch

if __name__ == "__main__":
    try:
        print(sbatch.launching(*sys.argv[1:2]), end="")
    except ArgumentError as error:
        sys.exit(f"mpicoll: {error}")

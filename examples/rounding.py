"""How does the order of additions change a 16-bit sum? Rank 0 has 2048 and every other rank has 1, in float16.

Start it with

    mpicoll run -n 8 examples/rounding.py
"""

import numpy as np

import mpicoll

ALGORITHMS = ("linear", "binomial_tree", "recursive_doubling", "ring", None)


def sums(comm: mpicoll.Communicator) -> dict[str, list[float]]:
    """The all-reduce by each algorithm, of a vector with one element for each rank. All elements are equal."""
    x = np.full(comm.size, 1.0 if comm.rank else 2048.0, np.float16)
    return {algorithm or "default": comm.allreduce(x, algorithm=algorithm).tolist() for algorithm in ALGORITHMS}


def main(comm: mpicoll.Communicator | None = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    comm = comm or mpicoll.Communicator()
    found = sums(comm)
    if comm.rank == 0:
        for name, values in found.items():
            print(f"{name:<18} {' '.join(f'{value:.0f}' for value in values)}")


if __name__ == "__main__":
    main()

"""How does the order of additions change a 16-bit sum? Rank 0 has 256 and every other rank has 1, in bfloat16.

Start it with

    mpicoll run -n 4 examples/rounding.py
"""

import torch

import mpicoll.torch as dist

ALGORITHMS = ("linear", "binomial_tree", "recursive_doubling", "ring", None)


def sums() -> dict[str, list[float]]:
    """The all-reduce by each algorithm, of a vector with one element for each rank. All elements are equal."""
    found = {}
    for algorithm in ALGORITHMS:
        x = torch.full((dist.get_world_size(),), 1.0 if dist.get_rank() else 256.0, dtype=torch.bfloat16)
        dist.all_reduce(x, algorithm=algorithm)
        found[algorithm or "default"] = x.tolist()
    return found


def main(comm: object = None) -> None:
    """What each rank does. A rank is a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    found = sums()
    if dist.get_rank() == 0:
        for name, values in found.items():
            print(f"{name:<18} {' '.join(f'{value:.0f}' for value in values)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""How an algorithm's order of additions shows in 16 bits: 256 of rank 0 and 1 of every other rank, in bfloat16.

Start it with

    mpicoll run -n 4 examples/rounding.py
"""

import torch

import mpicoll.torch as dist

ALGORITHMS = ("linear", "binomial_tree", "recursive_doubling", "ring", None)


def sums() -> dict[str, list[float]]:
    """Each algorithm's all-reduce of a vector of as many equal elements as there are ranks."""
    found = {}
    for algorithm in ALGORITHMS:
        x = torch.full((dist.get_world_size(),), 1.0 if dist.get_rank() else 256.0, dtype=torch.bfloat16)
        dist.all_reduce(x, algorithm=algorithm)
        found[algorithm or "default"] = x.tolist()
    return found


def main(comm: object = None) -> None:
    """What each rank does, be it a process or, with ``ranks.run(main)``, a thread."""
    dist.init_process_group("mpicoll")
    found = sums()
    if dist.get_rank() == 0:
        for name, values in found.items():
            print(f"{name:<18} {' '.join(f'{value:.0f}' for value in values)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

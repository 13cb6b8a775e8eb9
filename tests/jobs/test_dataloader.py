"""DataLoader workers of a rank: forked ones hold its MPI, spawned ones import its script again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.jobs import NEEDS_TORCH, run, script

pytestmark = [NEEDS_TORCH, pytest.mark.first_mpi]

SCRIPT = """
    import sys
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler
    import mpicoll.torch as dist

    class Squares(Dataset):
        def __len__(self):
            return 24
        def __getitem__(self, i):
            if sys.argv[1] == "fork":
                assert dist.get_world_size() == 2 and dist.get_rank() in (0, 1)  # as a dataset that takes its share
            return i, torch.tensor(float(i * i))

    def main(method):
        dist.init_process_group("mpicoll")
        rank, size = dist.get_rank(), dist.get_world_size()
        squares = Squares()
        sampler = DistributedSampler(squares, size, rank, shuffle=False)
        workers = 2 if method == "fork" else 1
        loader = DataLoader(squares, 4, sampler=sampler, num_workers=workers, multiprocessing_context=method)
        total = torch.zeros(())
        for indices, values in loader:
            total += values.sum()
            dist.barrier()  # communicates while the workers live
        dist.all_reduce(total)
        assert total.item() == sum(i * i for i in range(24)), total
        dist.destroy_process_group()
        print("epoch done", flush=True)

    if __name__ == "__main__":
        main(sys.argv[1])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(tmp_path: Path, method: str) -> None:
    result = run(2, script(tmp_path, SCRIPT), method).good()
    assert result.output.count("epoch done") == 2


IMPORTED = """
    import torch
    from torch.utils.data import DataLoader
    import mpicoll.torch as dist

    dist.init_process_group("mpicoll")
    if __name__ == "__main__":
        list(DataLoader(torch.arange(4.0), num_workers=1, multiprocessing_context="spawn"))
"""


def test_a_worker_that_imports_what_begins_the_group(tmp_path: Path) -> None:
    """It inherits the address of its rank's store."""
    run(1, script(tmp_path, IMPORTED)).bad(
        "LaunchError: a multiprocessing child of an MPI rank imports the rank's program"
    )

"""Random legal calls of torch.distributed over gloo, the same ones on all ranks, started by torchrun:
``random_torch.py SEED CALLS``. Each result is compared with what it must be. Nothing may be said."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

MOST_GROWTH = 32 << 20
"""Bytes that a rank may have more at the end than after a fifth of the calls."""
GROUPS = 4
"""Groups that there are at a time. The oldest one is destroyed when a new one is made."""
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "product": dist.ReduceOp.PRODUCT}
DTYPES = torch.float64, torch.int64, torch.float32, torch.int32
ASYNCHRONOUS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "gather", "scatter", "all_to_all_single", "barrier",
)  # fmt: skip

Call = Callable[["Job"], None]


def memory() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Job:
    """What a call is made with. What ``same`` gives is the same on all ranks, and what ``own`` gives is not."""

    same: Random

    def __init__(self, seed: int) -> None:
        dist.init_process_group("gloo")
        self.own = Random(seed * 1000 + dist.get_rank())
        self.groups: list[Any] = [dist.group.WORLD]
        self.pending: list[Callable[[], None]] = []

    def begin(self) -> bool:
        """Draw the group of the next call, and its numbers. Returns whether this rank is in the group."""
        self.group = self.same.choice(self.groups)
        if self.group is dist.GroupMember.NON_GROUP_MEMBER:
            return False
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.count, self.root = self.same.choice([1, 3, 200, 5000]), self.same.randrange(self.size)
        self.op, self.dtype = self.same.choice([*OPS]), self.same.choice(DTYPES)
        self.first = self.same.randrange(1, 9)
        return True

    def of(self, rank: int, count: int | None = None) -> torch.Tensor:
        """What this rank of the group gives in this call."""
        return torch.full((self.count if count is None else count,), self.first + rank, dtype=self.dtype)

    def empty(self, count: int | None = None) -> torch.Tensor:
        return torch.empty(self.count if count is None else count, dtype=self.dtype)

    def all(self) -> list[torch.Tensor]:
        return [self.of(rank) for rank in range(self.size)]

    def reduced(self, op: str | None = None) -> torch.Tensor:
        """What all ranks' tensors give together."""
        each = torch.stack(self.all())
        match op or self.op:
            case "sum":
                return each.sum(0, dtype=self.dtype)
            case "product":
                return each.prod(0, dtype=self.dtype)
            case "max":
                return each.amax(0)
            case _:
                return each.amin(0)

    def finish(self) -> None:
        """Wait for all that is pending."""
        while self.pending:
            self.pending.pop(self.own.randrange(len(self.pending)))()


def same(found: Any, expected: Any) -> None:
    if isinstance(found, torch.Tensor):
        assert torch.equal(found, expected), (found, expected)
    else:
        assert len(found) == len(expected)
        for each, other in zip(found, expected, strict=True):
            same(each, other)


def collective(job: Job) -> None:
    """One that blocks, or gives a Work that is waited for now or later, or is asked whether it is complete."""
    name, how = job.same.choice(ASYNCHRONOUS), job.same.choice(["", "", "wait", "later", "ask"])
    at_root, op, group = job.rank == job.root, OPS[job.op], job.group
    root = dist.get_global_rank(group, job.root)
    x, mine = job.of(job.rank), job.of(job.rank)
    given: dict[str, Any] = {"group": group, "async_op": bool(how)}
    found: Any
    expected: Any
    if name == "all_reduce":
        work, found, expected = dist.all_reduce(x, op, **given), x, job.reduced()
    elif name == "broadcast":
        work, found, expected = dist.broadcast(x, root, **given), x, job.of(job.root)
    elif name == "reduce":
        work = dist.reduce(x, root, op, **given)
        found, expected = (x, job.reduced()) if at_root else (mine, mine)
    elif name == "all_gather":
        got = [job.empty() for _ in range(job.size)]
        work, found, expected = dist.all_gather(got, x, **given), got, job.all()
    elif name == "all_gather_into_tensor":
        whole = job.empty(job.count * job.size)
        work, found, expected = dist.all_gather_into_tensor(whole, x, **given), whole, torch.cat(job.all())
    elif name == "reduce_scatter":
        work = dist.reduce_scatter(x, [job.of(job.rank) for _ in range(job.size)], op, **given)
        found, expected = x, job.reduced()
    elif name == "reduce_scatter_tensor":
        work = dist.reduce_scatter_tensor(x, job.of(job.rank, job.count * job.size), op, **given)
        found, expected = x, job.reduced()
    elif name == "gather":
        got = [job.empty() for _ in range(job.size)] if at_root else []
        work = dist.gather(x, got if at_root else None, root, **given)
        found, expected = got, job.all() if at_root else []
    elif name == "scatter":
        work = dist.scatter(x, job.all() if at_root else None, root, **given)
        found, expected = x, job.of(job.rank)
    elif name == "all_to_all_single":  # rank r gives r + k + 1 elements to rank k, and so gets as many
        counts = [job.rank + other + 1 for other in range(job.size)]
        out = job.empty(sum(counts))
        work = dist.all_to_all_single(out, job.of(job.rank, sum(counts)), counts, counts, **given)
        found, expected = out, torch.cat([job.of(other, count) for other, count in enumerate(counts)])
    else:
        work, found, expected = dist.barrier(**given), [], []

    def complete() -> None:
        if how == "ask" and not name.startswith("reduce_scatter"):  # gloo's is complete only when it is waited for
            while not work.is_completed():
                pass
        elif work is not None:
            work.wait()
        same(found, expected)

    if how == "later":
        job.pending.append(complete)
    else:
        complete()


def objects(job: Job) -> None:
    """A collective of objects, which may have different lengths."""
    mine, root = "x" * job.own.randrange(500), dist.get_global_rank(job.group, job.root)
    at_root = job.rank == job.root
    match job.same.choice(["all_gather", "broadcast", "gather", "scatter"]):
        case "all_gather":
            got: list[Any] = [None] * job.size
            dist.all_gather_object(got, (job.rank, mine), job.group)
            assert [rank for rank, _ in got] == [*range(job.size)]
        case "broadcast":
            one: list[Any] = [job.first if at_root else None, mine if at_root else None]
            dist.broadcast_object_list(one, root, job.group)
            assert one[0] == job.first
        case "gather":
            got = [None] * job.size
            dist.gather_object((job.rank, mine), got if at_root else None, root, job.group)
            assert not at_root or [rank for rank, _ in got] == [*range(job.size)]
        case _:
            one = [None]
            dist.scatter_object_list(one, [*range(job.size)] if at_root else None, root, job.group)
            assert one == [job.rank]


def messages(job: Job) -> None:
    """A ring of messages. Many tags, some of any rank."""
    right, left = ((job.rank + step) % job.size for step in (1, -1))
    right, left = (dist.get_global_rank(job.group, each) for each in (right, left))
    if job.size == 1:
        return
    tag, x, y, expected = job.same.randrange(5), job.of(job.rank), job.empty(), job.of((job.rank - 1) % job.size)
    match job.same.choice(["isend", "irecv", "batch", "any", "late", "objects"]):
        case "isend":
            work: Any = dist.isend(x, right, job.group, tag)
            dist.recv(y, left, job.group, tag)
            work.wait()
        case "irecv":
            work = dist.irecv(y, left, job.group, tag)
            dist.send(x, right, job.group, tag)
            work.wait()
        case "batch":
            ops = [dist.P2POp(dist.isend, x, right, job.group, tag), dist.P2POp(dist.irecv, y, left, job.group, tag)]
            for each in dist.batch_isend_irecv(ops if job.own.random() < 0.5 else ops[::-1]):
                each.wait()
        case "any" if job.size == 2:  # among more, a message of the next call might come first
            work = dist.isend(x, right, job.group, tag)
            assert dist.recv(y, None, job.group, tag) == left
            work.wait()
        case "objects" if job.rank % 2 == 0 and job.size % 2 == 0:
            dist.send_object_list([job.rank, job.first], right, job.group)
            y = expected
        case "objects" if job.size % 2 == 0:
            got: list[Any] = [None, None]
            dist.recv_object_list(got, left, job.group)
            assert got == [job.rank - 1, job.first]
            y = expected
        case _:
            works: list[Any] = [dist.irecv(y, left, job.group, tag), dist.isend(x, right, job.group, tag)]

            def complete() -> None:
                for each in works:
                    each.wait()
                same(y, expected)

            job.pending.append(complete)
            return
    same(y, expected)


def functions(job: Job) -> None:
    """A functional collective."""
    group, op, x, each = job.group, job.op, job.of(job.rank), job.reduced()
    match job.same.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "coalesced"]):
        case "all_reduce":
            found, expected = functional.all_reduce(x, op, group), each
        case "all_gather":
            found, expected = functional.all_gather_tensor(x, 0, group), torch.cat(job.all())
        case "reduce_scatter":
            whole = job.of(job.rank, job.count * job.size)
            found, expected = functional.reduce_scatter_tensor(whole, op, 0, group), each
        case "broadcast":
            found, expected = functional.broadcast(x, job.root, group), job.of(job.root)
        case "all_to_all":
            counts = [job.count] * job.size
            found = functional.all_to_all_single(job.of(job.rank, job.count * job.size), counts, counts, group)
            expected = torch.cat(job.all())
        case _:
            for one in functional.all_reduce_coalesced([x, x + 0], op, group):
                same(one + 0, each)
            return
    same(found + 0, expected)


def coalesced(job: Job) -> None:
    """Calls that torch carries out as one."""
    op, whole, x = (
        OPS[job.op],
        [job.empty(job.count * job.size) for _ in range(3)],
        [job.of(job.rank) for _ in range(3)],
    )
    kind = job.same.choice(["all_reduce", "all_gather", "reduce_scatter"])
    with dist._coalescing_manager(job.group, async_ops=job.same.random() < 0.5) as manager:
        for one, all_of in zip(x, whole, strict=True):
            if kind == "all_reduce":
                dist.all_reduce(one, op, job.group)
            elif kind == "all_gather":
                dist.all_gather_into_tensor(all_of, one, job.group)
            else:
                all_of.copy_(job.of(job.rank, job.count * job.size))
                dist.reduce_scatter_tensor(one, all_of, op, job.group)
    if manager.works:
        manager.wait()
    if kind == "all_gather":
        same(whole, [torch.cat(job.all())] * 3)
    else:
        same(x, [job.reduced()] * 3)


def another_group(job: Job) -> None:
    """A group of some ranks, in the place of the oldest one. Rank 0 is in each."""
    job.finish()
    world = dist.get_world_size()
    ranks = [0, *job.same.sample(range(1, world), job.same.randrange(world))]
    made = dist.new_group(ranks)
    if len(job.groups) > GROUPS:
        oldest = job.groups.pop(1)
        if oldest is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(oldest)
    job.groups.append(made)


KINDS: dict[Call, float] = {
    collective: 6, objects: 1, messages: 3, functions: 2, coalesced: 1, another_group: 0.01,
}  # fmt: skip


def main(seed: int, calls: int) -> None:
    job, same, before = Job(seed), Random(seed), 0
    rank = dist.get_rank()
    for number in range(calls):
        what = same.choices([*KINDS], [*KINDS.values()])[0]
        job.same = Random(same.random())  # what a group's ranks draw must not change what the others draw next
        if what is another_group or job.begin():
            what(job)
        if len(job.pending) > 20:
            job.finish()
        if number == calls // 5:
            before = memory()
    job.finish()
    growth = memory() - before
    dist.destroy_process_group()
    assert growth < MOST_GROWTH, f"rank {rank} has {growth} bytes more"
    print(f"rank {rank} has made {calls} calls, {growth >> 10} KiB more", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

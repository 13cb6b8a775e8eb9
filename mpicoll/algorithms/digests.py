"""Digests of what algorithms do: a measurement of an algorithm does not hold for one that was changed since."""

from __future__ import annotations

from hashlib import blake2b

from mpicoll.algorithms.registry import Algorithm


def digest(algorithm: Algorithm, size: int) -> str:
    """A short text that changes if the algorithm's steps among ``size`` ranks do, or how it cuts a vector.

    The steps are those of the first ranks and the last one, with rank 0 as root: the same function gives all others.
    Algorithms of different names that do the same have the same digest."""
    ranks = sorted({0, min(1, size - 1), size - 1})
    cuts = (1, 3) if algorithm.pipelined else (1,)
    done = [algorithm.schedule(rank, size, 0, segments) for rank in ranks for segments in cuts]
    said = [algorithm.segment, *((each.collective, each.blocks, each.steps) for each in done)]
    return blake2b(repr(said).encode(), digest_size=6).hexdigest()

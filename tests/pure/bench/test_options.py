"""Options are read, or refused in one line that names the option."""

from __future__ import annotations

import pytest

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.bench.options import Options, read
from mpicoll.cli import parser
from mpicoll.errors import ArgumentError

TYPED: dict[str, str | None] = vars(parser().parse_args(["bench", "allreduce", "-n2"]))
"""What the command line gives where nothing else is typed."""


def options(**typed: str | None) -> Options:
    return read(TYPED | typed)


@pytest.mark.parametrize(
    ("typed", "sizes"),
    [
        ({}, [8 << i for i in range(24)]),
        ({"max": "4k"}, [8 << i for i in range(10)]),
        ({"min": "64MB", "max": "128MiB"}, [64 << 20, 128 << 20]),
        ({"min": "8", "max": "100", "factor": "3"}, [8, 24, 72]),  # never above the maximum
    ],
)
def test_sizes(typed: dict[str, str | None], sizes: list[int]) -> None:
    assert options(**typed).sizes == sizes


@pytest.mark.parametrize(
    ("typed", "collectives"),
    [
        ("all_reduce", ("allreduce",)),
        ("bcast, all_gather_into_tensor", ("bcast", "allgather")),
        ("all", tuple(COLLECTIVES)),
    ],
)
def test_collectives(typed: str, collectives: tuple[str, ...]) -> None:
    assert set(options(collective=typed).collectives) == set(collectives)


def test_the_command_gives_the_same_again() -> None:
    import shlex

    first = options(
        collective="bcast,reduce", backends="mpicoll,gloo", dtype="float64", op="max", root="1", algorithms="native"
    )
    words = shlex.split(first.command())[2:]
    typed = {"collective": words[0], "n": words[2]}
    typed |= {k.removeprefix("--"): v for k, v in zip(words[3::2], words[4::2], strict=True)}
    assert options(**typed) == first


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ("--min", {"min": "12Q"}),
        ("--min", {"min": "1.5K"}),
        ("--min", {"min": "16", "max": "8"}),
        ("--max", {"max": "1001", "dtype": "float64"}),
        ("collective", {"collective": "allreduce,alreduce"}),
        ("--backends", {"backends": "mpi,nickel"}),
        ("--dtype", {"dtype": "float31"}),
        ("--dtype", {"dtype": "float32,float64"}),
        ("--backends", {"backends": "mpi,mpi"}),
        ("--op", {"op": "premul_sum"}),
        ("--op", {"op": "avg", "dtype": "bool"}),
        ("--root", {"root": "2"}),
        ("-n", {"n": "0"}),
        ("--factor", {"factor": "1"}),
        ("--seconds", {"seconds": "nan"}),
        ("--device", {"device": "tpu"}),
        ("--algorithms", {"algorithms": "native,rong"}),
        ("--algorithms", {"algorithms": "ring", "backends": "mpi"}),
        ("--algorithms", {"algorithms": "ipc"}),  # of GPUs
        ("--algorithms", {"algorithms": "ipc:ring", "device": "cuda"}),
        ("--algorithms", {"algorithms": "staged:rong", "device": "cuda"}),
        ("--json", {"json": "/no/such/directory/f.json"}),
        ("--json", {"json": f"{__file__}/f.json"}),
        ("--json, --plot", {"json": "/tmp/one.png", "plot": "/tmp/../tmp/one.png"}),
        ("--plot", {"plot": "/no/such/directory/f.png"}),
        ("--plot", {"plot": "/tmp/x.foo"}),
    ],
)
def test_nonsense_names_its_option(option: str, typed: dict[str, str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        options(**typed)
    assert caught.value.argument == option
    assert str(caught.value).startswith(f"bench: {option}: expected ")
    assert "\n" not in str(caught.value)


def test_a_gpu_s_routes_are_algorithms_there() -> None:
    names = ("ipc", "native", "staged:ring", "device:ring")
    assert options(algorithms=",".join(names), device="cuda").algorithms == names

"""Options are read, or refused in one line that names the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpicoll.algorithms.collectives import COLLECTIVES
from mpicoll.bench.options import BACKENDS, Options, read
from mpicoll.cli import parser
from mpicoll.errors import ArgumentError
from mpicoll.units import size_text

TYPED: dict[str, str | None] = vars(parser().parse_args(["bench", "allreduce", "-n2"]))
"""What the command line gives where nothing else is typed."""


def options(**typed: str | None) -> Options:
    return read(TYPED | typed)


def test_the_manual_describes_every_backend() -> None:
    manual = (Path(__file__).parents[3] / "docs/how-to/benchmark.md").read_text()
    described = manual.partition("## Choose the backends")[2].partition("\n## ")[0]
    assert described
    assert [name for name in BACKENDS if f"`{name}`" not in described] == []


def test_the_defaults() -> None:
    found = options()
    assert found.sizes == [8 << i for i in range(24)]
    assert found.backends == ()  # the ranks take what there is


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("4K", 4096), ("4k", 4096), ("4KiB", 4096), ("64MB", 64 << 20), ("1G", 1 << 30), ("12", 12)],
)
def test_sizes(text: str, size: int) -> None:
    assert options(min=text, max="1G").min == size


@pytest.mark.parametrize("size", [8, 12, 1024, 1536, 64 << 20, 3 << 30])
def test_a_size_reads_back_as_itself(size: int) -> None:
    assert options(min=size_text(size), max="8G").min == size


@pytest.mark.parametrize(("typed", "sizes"), [("8:32", [8, 16, 32]), ("16", [8, 16]), ("32M:", [32 << 20, 64 << 20])])
def test_the_sizes_of_osu(typed: str, sizes: list[int]) -> None:
    assert read(vars(parser().parse_args(["bench", "allreduce", "-n2", "-m", typed]))).sizes == sizes


def test_osu_counts_a_block_where_there_is_one_for_each_rank() -> None:
    osu = options(format="osu", max="16")
    assert osu.backends == ("mpicoll",)
    assert osu.sizes_of(COLLECTIVES["allreduce"]) == osu.sizes_of(COLLECTIVES["reduce_scatter"]) == [8, 16]
    assert osu.sizes_of(COLLECTIVES["alltoall"]) == [16, 32]
    assert options(max="16").sizes_of(COLLECTIVES["alltoall"]) == [8, 16]
    assert osu.sizes_of(COLLECTIVES["barrier"]) == [0]


def test_the_last_size_is_never_above_the_maximum() -> None:
    assert options(min="8", max="100", factor="3").sizes == [8, 24, 72]


@pytest.mark.parametrize("name", ["all_reduce", "allreduce"])
def test_either_spelling(name: str) -> None:
    assert options(collective=name).collectives == ("allreduce",)


def test_several_collectives_and_all() -> None:
    assert options(collective="bcast, all_gather_into_tensor").collectives == ("bcast", "allgather")
    assert len(options(collective="all").collectives) == 11


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
        ("--op", {"op": "premul_sum"}),
        ("--op", {"op": "avg", "dtype": "bool"}),
        ("--root", {"root": "2"}),
        ("-n", {"n": "0"}),
        ("--factor", {"factor": "1"}),
        ("--seconds", {"seconds": "nan"}),
        ("--device", {"device": "tpu"}),
        ("--algorithms", {"algorithms": "native,rong"}),
        ("--algorithms", {"algorithms": "ring", "backends": "mpi"}),
        ("--format", {"format": "wide"}),
        ("--backends", {"format": "osu", "backends": "mpi,gloo"}),
        ("--algorithms", {"format": "osu", "algorithms": "ring,native"}),
        ("--json", {"json": "/no/such/directory/f.json"}),
        ("--csv", {"json": "/tmp/one", "csv": "/tmp/../tmp/one"}),
        ("--plot", {"plot": "/proc/f.png"}),
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
    for wrong in ("ipc:ring", "staged:rong"):
        with pytest.raises(ArgumentError, match=rf"--algorithms: expected one of native.*given '{wrong}'"):
            options(algorithms=wrong, device="cuda")
    with pytest.raises(ArgumentError, match=r"--algorithms: expected one of native.*given 'ipc'"):
        options(algorithms="ipc")


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mpicoll.bench.options.find_spec", lambda _: None)
    with pytest.raises(ArgumentError, match=r"--plot: expected matplotlib.*pip install matplotlib"):
        options(plot=str(tmp_path / "f.png"))


def test_a_picture_is_of_a_kind_that_can_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"--plot: expected a name that ends in .png, .pdf, .svg; given .*x.foo"):
        options(plot=str(tmp_path / "x.foo"))

"""The arithmetic of CUDA's stream, on tensors of the host: torch's functions are the same there. Needs no GPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mpicoll import Op
from mpicoll.arrays.buffers import Buffer, host_buffer
from mpicoll.arrays.dtypes import DTYPES, OPS, Dtype, reduction
from mpicoll.arrays.kernels import storage
from mpicoll.devices.cuda import Cuda, CudaStream
from mpicoll.errors import DeviceError
from tests import oracle

Array = np.ndarray[Any, Any]


class TorchWithoutStreams:
    """torch, with streams that change nothing."""

    cuda = SimpleNamespace(stream=lambda stream: nullcontext())

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def device() -> Cuda:
    made = Cuda.__new__(Cuda)  # to make one, torch must see a GPU
    made.name, made._torch = "cuda:0", TorchWithoutStreams()
    return made


@pytest.fixture
def stream() -> CudaStream:
    return CudaStream(TorchWithoutStreams(), None)


def buffer(values: Array, dtype: Dtype) -> Buffer:
    """A buffer of the host with these values."""
    bits = np.ascontiguousarray(values)
    if dtype.storage is not None:
        bits = (bits.view(np.uint32) >> 16).astype(np.uint16)
    memory = np.frombuffer(bytearray(bits.tobytes() + b" "), np.uint8)  # it has an address even without elements
    return host_buffer(memory, values.shape, dtype)


def values(b: Buffer) -> Array:
    bits: Array = b.array[: b.nbytes].view(storage(b.dtype)).reshape(b.shape)
    return bits if b.dtype.storage is None else (bits.astype(np.uint32) << 16).view(np.float32)


def test_every_reduction(device: Cuda, stream: CudaStream) -> None:
    rng = np.random.default_rng(6)
    refused = set()
    for op in OPS:
        for d in DTYPES.values():
            if d.kind not in OPS[op][0]:
                continue
            factors = [2.0, 0.5, -1.0] if op == "premul_sum" else None
            r = reduction(Op.premul_sum(2.0) if factors else op, d, "test")
            if not device.reduces(r):
                refused.add((op, d.name))
                continue
            rows = [oracle.values(rng, d.name, (50,), op) for _ in range(3)]
            given = [buffer(row, d) for row in rows]
            out = buffer(rows[0], d)
            stream.combine([device.view(b) for b in given], device.view(out), r, factors)
            np.testing.assert_array_equal(values(out), oracle.reducer(op, d.name, factors)(rows), err_msg=f"{op} {d}")
    wide = [f"uint{bits}" for bits in (16, 32, 64)]
    assert refused == {(op, dtype) for op in ("min", "max", "avg") for dtype in wide}


def test_averages_are_divided_as_on_the_host(device: Cuda, stream: CudaStream) -> None:
    for d in DTYPES.values():
        r = d.kind in "ifc" and reduction("avg", d, "test")
        if not r or not device.reduces(r):
            continue
        given = np.array([-7, -6, 0, 5, 7]).astype(oracle.held(d.name))
        b = buffer(given, d)
        stream.divide(device.view(b), 3, d)
        wide = given.astype({"i": "f8", "f": "f4", "c": "c8"}[d.kind]) / 3
        expected = np.trunc(wide) if d.kind == "i" else oracle.rounded(wide, d.name)
        np.testing.assert_allclose(values(b), expected, rtol=1e-6, err_msg=str(d))


def test_nans_of_short_floats_have_the_same_bits(device: Cuda, stream: CudaStream) -> None:
    for name, bits in (("float16", 0x7E00), ("bfloat16", 0x7FC0)):
        d = DTYPES[name]
        strange = host_buffer(np.array([bits | 0x8001, bits | 3], np.uint16).view(np.uint8), (2,), d)
        out = host_buffer(np.zeros(4, np.uint8), (2,), d)
        stream.combine([device.view(strange)] * 2, device.view(out), reduction("sum", d, "test"))
        assert out.array.view(np.uint16).tolist() == [bits, bits]


@pytest.mark.parametrize("d", [*DTYPES.values(), Dtype("V3", 3, "V", None)], ids=str)
def test_views_of_every_dtype_and_layout(device: Cuda, stream: CudaStream, d: Dtype) -> None:
    memory = np.arange(12 * d.itemsize, dtype=np.uint8)
    whole = host_buffer(memory, (3, 4), d)
    columns = replace(whole, shape=(3, 2), strides=(4 * d.itemsize, d.itemsize), plain=False)
    out = host_buffer(np.zeros(6 * d.itemsize, np.uint8), (3, 2), d)
    stream.copy(device.view(out), device.view(columns))
    expected = memory.reshape(3, 4, d.itemsize)[:, :2].ravel()
    if d.name != "bool":  # of a bool torch keeps only whether it is true
        np.testing.assert_array_equal(out.array, expected)
    empty = host_buffer(np.zeros(0, np.uint8), (0, 2), d)
    stream.copy(device.view(empty), device.view(empty))


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU")
def test_there_is_no_gpu() -> None:
    with pytest.raises(DeviceError, match="GPU memory that this process can reach"):
        Cuda("cuda:0")

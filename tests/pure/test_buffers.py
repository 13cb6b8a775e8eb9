"""Any array as a Buffer, without an MPI call."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from mpicoll.arrays.buffers import as_buffer
from mpicoll.calls import plan
from mpicoll.errors import ArgumentError, DtypeError
from tests.arrays import Exporter


@pytest.mark.parametrize(
    "x",
    [
        np.datetime64("1970-09-13"),
        np.timedelta64(255, "s"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
        np.array([(1, "2026-01-01")], dtype=[("a", "i4"), ("b", "M8[D]")])[0],
        np.void(b"abcd"),
        np.bytes_(b"abc"),
        np.str_("abc"),
        np.float16(2),
        np.longdouble(2),
    ],
    ids=lambda x: str(x.dtype),
)
def test_a_scalar_is_an_array_without_dimensions(x: Any) -> None:
    b = as_buffer(x, "op", "x")
    assert (b.array.dtype, b.array.shape, b.array[()], b.writable) == (x.dtype, (), x, False)
    assert (b.dtype.name, b.nbytes) == (str(x.dtype), x.nbytes)


def test_memory_for_which_numpy_has_no_dtype() -> None:
    with pytest.raises(DtypeError, match="a dtype for; given c_wchar of format '<u'"):
        as_buffer(ctypes.c_wchar("a"), "op", "x")


def test_a_tensor_whose_storage_was_freed() -> None:
    x = torch.zeros(4)
    x.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match="a Tensor, which has none"):
        as_buffer(x, "op", "x")


def test_a_copy_lies_on_the_host_whatever_the_default_device() -> None:
    with torch.device("meta"):
        copy = as_buffer(torch.zeros(2, 3, device="cpu").t(), "op", "x").on_host()
    assert (copy.device, copy.plain) == ("cpu", True)


def test_what_torch_alone_takes_by_dlpack_is_only_read() -> None:
    b = as_buffer(Exporter(torch.ones(3).bfloat16()), "op", "x")
    assert (b.dtype.name, b.count, b.writable) == ("bfloat16", 3, False)


class Interface:
    """An array behind NumPy's interface alone."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.kept, self.__array_interface__ = x, x.__array_interface__


def test_numpys_interface() -> None:
    whole = np.arange(6.0)
    part = as_buffer(Interface(whole[::2]), "bcast", "x")
    assert (part.shape, part.strides, part.plain, part.writable) == ((3,), (16,), False, True)
    assert part.address == whole.ctypes.data
    fixed = np.ones(2)
    fixed.flags.writeable = False
    assert not as_buffer(Interface(fixed), "bcast", "x").writable


class AsOnAGpu(torch.Tensor):
    """A tensor with the interface that torch's own have on a GPU. It does not say that a view conjugates."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.data_ptr(), False), "shape": tuple(self.shape), "typestr": "<c8", "version": 3}


@pytest.mark.parametrize("known", [False, True], ids=["the first tensor", "a later one"])
def test_a_tensor_s_key_is_never_that_of_its_interface(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_TENSORS", {torch.Tensor} if known else set())
    key = plan.key_by(lambda x: x.ctypes.data)
    x = torch.zeros(3, dtype=torch.complex64)
    assert key(x.as_subclass(AsOnAGpu).conj()) is None
    assert key(x.as_subclass(AsOnAGpu)) is None
    assert key(x) == (x.data_ptr(), 3, torch.complex64)

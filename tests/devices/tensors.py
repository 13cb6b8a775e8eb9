"""torch's tensors in the memory of a simulated device, so that mpicoll.torch's own code works on them.

Such a tensor says that it is on a CUDA device of a high number. Its memory ends the process if the host touches it. So
each of torch's operations is done by the device's current stream, late. To read values waits for the
stream. torch itself takes the storage for the host's. So what torch's C++ decides by a tensor's device differs."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from mpicoll.arrays.libraries import owners
from mpicoll.calls import plan
from mpicoll.errors import StateError
from tests.devices.simulated import Simulated
from tests.devices.simulated_queue import Place, SimulatedStream

_indices = itertools.cycle(range(64, 128))


class SimulatedGpu(Simulated):
    """A simulated device that is called ``cuda:64`` or so. Unless ``mpi`` says so, the MPI does not take its memory."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"mpi": False, **options})
        self.capturing = 0
        """The number of the thread whose current stream is as if it captured a CUDA graph."""
        self.torch_device = torch.device("cuda", next(_indices))
        self.name = str(self.torch_device)
        owners[self.name] = self
        plan.key_by(id)(torch.empty(0))  # else the kernel would not hear of torch's own tensors
        plan._TENSORS.add(SimulatedTensor)

    def current(self) -> SimulatedStream:
        if self.__dict__.get("capturing") == get_ident():
            raise StateError(f"{self.name}: the current stream is capturing")
        return super().current()

    def tensor(self, given: Any, dtype: torch.dtype | None = None) -> SimulatedTensor:
        """A tensor with these values."""
        host = torch.as_tensor(given, dtype=dtype).detach()
        made = self.like(host)
        made.copy_(host)
        return made

    def like(self, x: torch.Tensor) -> SimulatedTensor:
        """A tensor of the shape, strides and dtype of ``x``, without values."""
        nbytes = max(x.untyped_storage().nbytes() if x.device.type == "meta" else 0, _extent(x)) or x.element_size()
        memory = self.allocate(nbytes, self.current())
        held: Any = (ctypes.c_char * nbytes).from_address(memory.address)
        held.memory = memory  # a storage keeps this, and so the memory
        whole = torch.frombuffer(held, dtype=x.dtype)
        return SimulatedTensor(whole.as_strided(x.size(), x.stride()), self)

    def real(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor over the bytes behind ``x``, for the device's streams."""
        storage = x.untyped_storage()
        start = next(r.real(storage.data_ptr()) for r in self._ranges() if r.owns(storage.data_ptr()))
        whole = torch.frombuffer((ctypes.c_char * storage.nbytes()).from_address(start), dtype=x.dtype)
        return whole.as_strided(x.size(), x.stride(), x.storage_offset())

    @contextmanager
    def takes_new_tensors(self) -> Iterator[None]:
        """What torch's C++ allocates for floats in the meantime, such as DDP's buckets, lies on this device."""
        with _NewTensors(self):
            yield


class SimulatedTensor(torch.Tensor):
    """A tensor on a SimulatedGpu."""

    owner: SimulatedGpu

    @staticmethod
    def __new__(cls, x: torch.Tensor, owner: SimulatedGpu) -> SimulatedTensor:
        made: SimulatedTensor = torch.Tensor._make_subclass(cls, x, False)
        made.owner = owner
        return made

    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)
    device = property(lambda self: self.owner.torch_device)

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        """A copy in the host's memory, when the current stream has come to it."""
        return torch.empty(self.shape, dtype=self.dtype).copy_(self.detach())

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SimulatedTensor of {tuple(self.shape)} {self.dtype} on {self.device}"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, SimulatedTensor)]
        return _done(given[0].owner, func, args, kwargs or {})


class _NewTensors(TorchDispatchMode):
    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        here = any(isinstance(x, SimulatedTensor) for x in tree_flatten((args, kwargs))[0])
        floats = (kwargs or {}).get("dtype") in (torch.float32, torch.bfloat16)
        if here or (func is torch.ops.aten.empty.memory_format and floats):
            return _done(self._gpu, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _done(gpu: SimulatedGpu, func: Any, args: Any, kwargs: Any) -> Any:
    """The operation, on the device."""
    returns = func._schema.returns
    if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
        found = func(*tree_map_only(SimulatedTensor, _bare, args), **tree_map_only(SimulatedTensor, _bare, kwargs))
        return tree_map_only(torch.Tensor, lambda x: SimulatedTensor(x, gpu), found)
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    here = [x for x in tensors if isinstance(x, SimulatedTensor)]
    written = [_given(i, a.name, args, kwargs) for i, a in enumerate(func._schema.arguments) if _is_written(a)]
    real_args, real_kwargs = tree_map_only(torch.Tensor, partial(_real, gpu, written), (args, kwargs))
    run = partial(func, *real_args, **real_kwargs)
    outs: list[SimulatedTensor] = []
    result = written[0] if len(written) == 1 and len(returns) == 1 else written
    if not written:
        metas = tree_map_only(torch.Tensor, _meta, args), tree_map_only(torch.Tensor, _meta, kwargs)
        if not all("Tensor" in str(r.type) for r in returns):
            gpu.current().synchronize()
            return run()
        if "device" in metas[1] or not tensors:
            metas[1]["device"] = torch.device("meta")
        result = tree_map_only(torch.Tensor, gpu.like, func(*metas[0], **metas[1]))
        outs = [x for x in tree_flatten(result)[0] if isinstance(x, SimulatedTensor)]
    _hand_in(gpu, partial(_into, run, [gpu.real(x) for x in outs]), [*here, *outs])
    if any(not isinstance(x, SimulatedTensor) for x in written):
        gpu.current().synchronize()  # a copy to memory of the host
    return result


def _into(run: Callable[[], Any], outs: list[torch.Tensor]) -> None:
    found = [x for x in tree_flatten(run())[0] if isinstance(x, torch.Tensor)]
    for out, x in zip(outs, found if outs else (), strict=True):
        out.copy_(x)


def _hand_in(gpu: SimulatedGpu, work: Callable[[], None], tensors: list[SimulatedTensor]) -> None:
    nothing = np.empty(0, np.uint8)
    places = [Place(nothing, x.data_ptr(), x.data_ptr() + _extent(x)) for x in tensors if x.numel()]
    gpu.current().hand_in("kernel", work, sum(p.high - p.low for p in places), *places)


def _real(gpu: SimulatedGpu, written: list[Any], x: torch.Tensor) -> torch.Tensor:
    if isinstance(x, SimulatedTensor):
        return gpu.real(x)
    return x if any(x is w for w in written) else x.detach().clone()  # the host may change it before its turn comes


def _given(i: int, name: str, args: Any, kwargs: Any) -> Any:
    return args[i] if i < len(args) else kwargs[name]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _bare(x: SimulatedTensor) -> torch.Tensor:
    """The same memory, as a tensor that torch takes for one of the host."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())


def _meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")


def _extent(x: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if not x.numel():
        return 0
    return (sum((n - 1) * s for n, s in zip(x.size(), x.stride(), strict=True)) + 1) * x.element_size()


def values(x: torch.Tensor) -> Any:
    """The values, as a list, when the current stream has come to them."""
    return x.detach().cpu().tolist()

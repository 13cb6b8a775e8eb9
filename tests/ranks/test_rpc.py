"""torch's RPC beside mpicoll."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed.rpc as rpc

from mpicoll.supervise import sites


def test_its_threads_may_make_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are C++'s, so that nobody sees them before a function of the program is called."""
    monkeypatch.setattr(sites, "frames_now", dict)
    assert sites.is_alone()
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store")
    rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)
    try:
        assert not sites.is_alone()
    finally:
        rpc.shutdown()
    assert sites.is_alone()

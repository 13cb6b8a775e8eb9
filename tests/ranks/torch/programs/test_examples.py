"""The examples in which torch alone is imported."""

from __future__ import annotations

import ddp
import fsdp
import pytest
import torch.distributed as dist

from tests.ranks.torch.programs.training import shared_folder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Detected an existing checkpoint")]


def test_ddp(rank: int, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    dist.destroy_process_group()
    assert "mpicoll run -n 4 examples/ddp.py" in ddp.__doc__
    ddp.main()
    assert not dist.is_initialized()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (ddp.EPOCHS if rank == 0 else 0)
    if rank == 0:
        assert lines[-1].startswith(f"{size} ranks over mpicoll, epoch 3: ")
        assert float(lines[-1].split()[-2].removesuffix("%")) > 90


def test_fsdp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is continued from a checkpoint ends as a run without an interruption does."""
    assert "mpicoll run -n 4 examples/fsdp.py" in fsdp.__doc__
    with shared_folder() as folder:
        dist.destroy_process_group()
        monkeypatch.setattr(fsdp, "STEPS", 6)
        first = fsdp.main(None, folder)
        second = fsdp.main(f"{folder}/6", folder)
        monkeypatch.setattr(fsdp, "STEPS", 12)
        whole = fsdp.main(None, folder)
        assert whole[-1] < 0.8 * whole[0]
        assert first + second == pytest.approx(whole, rel=1e-3)
        dist.init_process_group("mpicoll")

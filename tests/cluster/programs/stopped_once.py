"""The training of examples/preemptible.py, without an end until it was stopped, and with one soon after it went on."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

MORE = 100
example = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "preemptible.py"))
folder = Path(sys.argv[1])
saved = folder / "checkpoint.pt"
example["main"](folder, torch.load(saved)["step"] + MORE if saved.exists() else 10**9)

"""Devices with memory of their own: CUDA GPUs."""

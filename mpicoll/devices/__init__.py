"""Devices with memory of their own: CUDA GPUs, and a simulated one that shows what a GPU would punish."""

"""The benchmark: MPI, gloo and NCCL side by side, on the same buffers, in one job. ``sweep`` goes through all sizes."""

"""The benchmark: MPI, gloo and NCCL side by side, on the same buffers, in one job.

- ``options`` reads what was asked for, ``session`` says where the benchmark runs.
- ``cases`` says what is measured, and checks the results. ``memory`` has the buffers.
- ``backends`` are the ways of calling.
- ``sweep`` goes through all sizes, ``timing`` takes the times.
- ``records`` has what was measured, and its files. ``table`` and ``plot`` show it, ``scaling`` and ``comparison`` make
  a report of many records.
"""

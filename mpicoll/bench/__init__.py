"""The benchmark: MPI, gloo and NCCL side by side, on the same buffers, in one job.

- ``options`` reads what was asked for, ``session`` says where the benchmark runs.
- ``cases`` says what is measured: the buffers of each case, their contents, and the check of the results.
- ``backends`` has one small file for each way of calling.
- ``measuring`` runs the calls and takes their times.
- ``report`` shows the measurements: the table, the files, the pictures.
- ``fit`` measures something else, for ``mpicoll simulate``: what the cost model has to know of this machine.
"""

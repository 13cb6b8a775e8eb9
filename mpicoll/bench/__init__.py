"""The measuring tool: MPI, gloo and NCCL side by side, on the same buffers, in one job.

``options`` reads what was asked for, ``rules`` says what each collective needs, ``memory`` lays out its buffers,
``data`` gives their contents and ``check`` judges the results; ``timing`` is the only place where time is taken.
``backends`` holds one small file per way of calling. ``sweep`` ties them together; ``table``, ``record`` and ``plot``
show what came out.
"""

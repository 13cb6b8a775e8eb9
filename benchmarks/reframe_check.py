"""A ReFrame test that reads what mpicoll bench prints in OSU's columns: here, or as your site's settings say.

pip install reframe-hpc
reframe -c benchmarks/reframe_check.py -r --performance-report
reframe -C settings.py -c benchmarks/reframe_check.py -r -S mpicoll_allreduce.ranks=8
"""

# mypy: disable-error-code="misc,untyped-decorator"

import sys
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_before, sanity_function, variable

SIZES = (8, 65536, 1048576)


@rfm.simple_test
class mpicoll_allreduce(rfm.RunOnlyRegressionTest):
    """All-reduces of floats, over mpicoll and over the MPI library alone."""

    backend = parameter(["mpicoll", "mpi"])
    ranks = variable(int, value=2)
    python = variable(str, value=sys.executable)
    valid_systems = ["*"]
    valid_prog_environs = ["*"]

    @run_before("run")
    def start(self) -> None:
        """ReFrame's launcher starts the ranks where it has one. Otherwise the benchmark starts them itself."""
        self.num_tasks = self.ranks
        self.executable = self.python
        sizes = f"{SIZES[0]}:{SIZES[-1]}"
        self.executable_opts = [
            "-m", "mpicoll", "bench", "allreduce", "-n", str(self.ranks), "-m", sizes,
            "--backends", self.backend, "--format", "osu", "--seconds", "0.3",
        ]  # fmt: skip
        if self.job.launcher.registered_name == "local":
            self.num_tasks = 1

    @sanity_function
    def is_right(self) -> Any:
        """Each element of each result was checked."""
        return sn.assert_found(r"^# 0 wrong elements in \d+ measurements: OK$", self.stdout)

    @run_before("performance")
    def times(self) -> None:
        self.perf_variables = {
            f"latency_{size}": sn.make_performance_function(
                sn.extractsingle(rf"^{size}\s+(\S+)$", self.stdout, 1, float), "us"
            )
            for size in SIZES
        }

"""First lines of the reports with which jobs end."""

from __future__ import annotations

DIFFERENT = "mpicoll: the ranks made different calls. The job ends (communicator of ranks 0-2)"
FIRST_IS_SILENT = "The first rank, which compares ranks, does not answer. The job ends"
HAS_LEFT = "mpicoll: a rank has finished, and others wait for it. The job ends (communicator of ranks 0-2)"
TIME_IS_UP = "mpicoll: a call was not complete in time. The job ends (communicator of ranks 0-2)"
STUCK = "mpicoll: ranks wait for each other, and none of them can go on. The job ends (communicator of ranks 0-2)"
IS_GONE = "mpicoll: a rank's process is gone, and others wait for it. The job ends (communicator of ranks 0-2)"

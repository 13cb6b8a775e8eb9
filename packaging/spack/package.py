"""A recipe for Spack. It was never built: nothing is released yet. The checksum is that of the source distribution."""

from spack.package import PythonPackage, depends_on, license, variant, version


class PyMpicoll(PythonPackage):
    """MPI collectives for any array and for torch, measured against gloo and NCCL."""

    pypi = "mpicoll/mpicoll-0.1.0.tar.gz"

    license("BSD-3-Clause")

    version("0.1.0", sha256="0" * 64)  # set by the release

    variant("torch", default=False, description="A backend for torch.distributed, and mpicoll.torch")

    depends_on("c", type="build")
    depends_on("py-setuptools@77:", type="build")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))  # built against the site's MPI
    depends_on("py-numpy@1.25:", type=("build", "run"))
    depends_on("py-torch@2.11:", type=("build", "run"), when="+torch")

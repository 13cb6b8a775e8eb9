"""How a call is carried out. Every route binds a call, once, into a plan."""

from __future__ import annotations

from mpi4py import MPI

from mpicoll.call import Call
from mpicoll.plan import Plan, Workspace
from mpicoll.routes import exchange, large, native

__all__ = ["bind"]

_BIND = {"native": native.bind, "exchange": exchange.bind}


def bind(comm: MPI.Intracomm, call: Call, algorithm: str, workspace: Workspace) -> Plan:
    """The plan that carries out ``call``, whose buffers are all plain memory that the MPI can reach."""
    route = _BIND[algorithm]
    if call.collective == "alltoallv":
        return large.if_any(comm, call, route(comm, call, workspace))
    if call.extent(comm.size) > large.MAX_COUNT:
        return large.bind(comm, call, lambda part: route(comm, part, workspace))
    return route(comm, call, workspace)

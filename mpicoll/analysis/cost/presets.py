"""Machines by name. Their rates come from data sheets or a measurement, their latencies from the sources named here."""

from __future__ import annotations

from dataclasses import replace

from mpicoll.analysis.cost.machines import Level, Machine

# Within a node of CPUs, as `mpicoll simulate --fit -n 2` measured it on 2 virtual cores of a Xeon at 2.1 GHz (Sapphire
# Rapids) with Open MPI 5.0.11. The time of Python is included.
_CORES = Level(name="node", ranks=None, latency=1.8e-7, gap=(1.59e-10, 1.18e-10, 1.11e-10), overhead=2.7e-7, ports=1)
_LAPTOP = Machine(
    name="laptop",
    source="mpicoll simulate --fit -n 2 on 2 virtual cores of a Xeon at 2.1 GHz, Open MPI 5.0.11",
    levels=(_CORES,),
    reduction=(1.15e-10, 9.4e-11, 2.03e-10),
    copy=(2.3e-11, 3.3e-11, 8.3e-11),
    reduction_overhead=2.1e-6,
    copy_overhead=4.0e-7,
    step=7.5e-7,
    caches=(1 << 17, 1 << 21),
    eager=256,
)

_ETHERNET = replace(
    _LAPTOP,
    name="ethernet",
    source="100 GbE (IEEE 802.3) at line rate, half a ping-pong as Cisco measured it; nodes of 32 cores like laptop's",
    levels=(
        replace(_CORES, ranks=32),
        Level(
            name="cluster",
            ranks=None,
            # Half a ping-pong of Open MPI over Ethernet that bypasses the kernel, back to back: 1.93 us, both
            # overheads in it (J. Squyres, MPI over 40 Gb Ethernet, Cisco 2014); a cut-through switch: 0.25 us (Cisco
            # Nexus 3548).
            latency=1.93e-6 + 0.25e-6 - 2 * _CORES.overhead,
            gap=8 / 100e9,  # 100 Gb/s
            overhead=_CORES.overhead,
            ports=1,  # one adapter a node
        ),
    ),
    eager=None,
    cores=32,
)

_IB_H100 = Machine(
    name="ib-h100",
    source="data sheets of H100 SXM, DGX H100 and ConnectX-7; latencies and buffers that NCCL assumes",
    levels=(
        Level(
            name="node",
            ranks=8,
            latency=0.6e-6,  # NCCL's src/graph/tuning.cc: ring over NVLink, LL protocol
            gap=1 / 450e9,  # data sheet of H100 SXM: NVLink 900 GB/s, half of it each way
            overhead=0.0,  # in NCCL's latency
            ports=1,
        ),
        Level(
            name="cluster",
            ranks=None,
            latency=2.7e-6,  # NCCL's src/graph/tuning.cc: ring over a network, LL protocol
            gap=8 / 400e9,  # data sheet of ConnectX-7: NDR, 400 Gb/s
            overhead=0.0,
            ports=8,  # DGX H100 user guide: one ConnectX-7 a GPU
        ),
    ),
    # Data sheet of H100 SXM: HBM3 at 3.35 TB/s. A reduction reads two vectors and writes one, a copy reads and writes.
    reduction=3 / 3.35e12,
    copy=2 / 3.35e12,
    eager=4 << 20,  # NCCL_BUFFSIZE's default: the receiver's buffer
)

MACHINES = {machine.name: machine for machine in (_LAPTOP, _ETHERNET, _IB_H100)}

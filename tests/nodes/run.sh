#!/usr/bin/env bash
# The tests on emulated nodes, with each environment given. Says so where there can be no such nodes.
#
#     tests/nodes/run.sh .venv/openmpi .venv/mpich [-- pytest's arguments, such as -k name]
set -euo pipefail

skipped() {
    echo "The tests on emulated nodes were SKIPPED: $1"
    exit 0
}

((EUID == 0)) || skipped "they need root"
if ! type -P ip > /dev/null; then
    type -P apt-get > /dev/null || skipped "they need ip of iproute2"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq --no-install-recommends iproute2 > /dev/null
fi
unshare --mount --uts --ipc --pid --net --fork ip link add probe type veth || skipped "namespaces are not permitted"

environments=()
while (($#)) && [[ $1 != -- ]]; do
    environments+=("$1")
    shift
done
selection=()
for environment in "${environments[@]}"; do
    "$environment/bin/python" -m pytest -q -rs --color=no -p no:cacheprovider "${selection[@]}" tests/nodes "${@:2}"
    selection=(-m "not any_mpi")
done

#!/usr/bin/env bash
# The tests on a real Slurm, with each environment given: installs Slurm where it can, and says so where it cannot.
#
#     tests/cluster/run.sh .venv/openmpi .venv/mpich [-- pytest's arguments, such as -k name]
set -euo pipefail

packages=(munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins libpmix2 libpmi2-0 iproute2)

skipped() {
    echo "The tests on Slurm were SKIPPED: $1"
    exit 0
}

((EUID == 0)) || skipped "emulated nodes need root"
type -P apt-get > /dev/null || skipped "this is no Debian, whose packages they need: ${packages[*]}"
if ! dpkg --status "${packages[@]}" &> /dev/null; then (
    export DEBIAN_FRONTEND=noninteractive
    # Debian starts the daemons that it installs unless this forbids it. The emulated cluster starts its own.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod 755 "$policy"
    fi
    apt-get update -qq
    apt-get install -qq --no-install-recommends "${packages[@]}" > /dev/null
) fi

python=$1/bin/python
environments=()
while (($#)) && [[ $1 != -- ]]; do
    environments+=("--environment=$1")
    shift
done
exec "$python" -m pytest -q -rs --color=no -p no:cacheprovider tests/cluster "${environments[@]}" "${@:2}"

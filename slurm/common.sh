# shellcheck shell=bash
# What all templates share, sourced by each: the site's presets, the environment, the launcher, and a report of them.
# Afterwards `launch script.py ...`, or `launch -m module ...`, starts the job's ranks of a Python program.
set -euo pipefail

SITE=${SITE:-ethernet}   # presets out of sites/, joined by +, such as infiniband+intel-mpi
for preset in ${SITE//+/ }; do
    # shellcheck source=/dev/null
    source "${MPICOLL_SLURM:-${SLURM_SUBMIT_DIR:-.}/slurm}/sites/$preset.env"
done

MPICOLL_MODULES=${MPICOLL_MODULES:-}   # modules to load
MPICOLL_ENV=${MPICOLL_ENV:-}   # a virtual environment to activate; empty: python3 as the modules give it
CONTAINER=${CONTAINER:-}   # an Apptainer image to run in; empty: none
LAUNCHER=${LAUNCHER:-auto}   # mpirun, srun-NAME with a NAME out of `srun --mpi=list`, or auto
BIND=${BIND:-cores}   # to what a rank is bound: cores, numa or none
RESULTS=${RESULTS:-${SLURM_SUBMIT_DIR:-.}/$SLURM_JOB_NAME-$SLURM_JOB_ID}   # the folder for results

die() {
    echo "mpicoll: $*" >&2
    exit 1
}

# Scripts of modules and of environments read variables that are not set.
set +u
if [[ -n $MPICOLL_MODULES ]]; then
    # shellcheck source=/dev/null
    type module &> /dev/null || source /etc/profile
    # shellcheck disable=SC2086  # a list of names
    module load $MPICOLL_MODULES
fi
if [[ -n $MPICOLL_ENV ]]; then
    # shellcheck source=/dev/null
    source "$MPICOLL_ENV/bin/activate"
fi
set -u

export PYTHONUNBUFFERED=1   # what a rank prints is in the log even if it is killed
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}   # which srun no longer takes from the job

mpi=$(python3 - << 'PYTHON'
import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI

print(MPI.Get_library_version().splitlines()[0])
PYTHON
) || die "python3 ($(type -P python3)) cannot load MPI: expected mpi4py in MPICOLL_ENV or in MPICOLL_MODULES"

case $mpi in
    *CRAY*) pmi=cray_shasta ;;
    "Open MPI"*) pmi=pmix ;;
    *) pmi=pmi2 ;;
esac
if [[ $LAUNCHER == auto ]]; then
    LAUNCHER=mpirun
    [[ $(srun --mpi=list 2>&1) != *"$pmi"* ]] || LAUNCHER=srun-$pmi
fi
case $LAUNCHER in
    mpirun) ranks=(python3 -m mpicoll run -n "$SLURM_NTASKS") ;;
    # Without --kill-on-bad-exit the ranks that are left wait for one that was killed.
    srun-*) ranks=(srun "--mpi=${LAUNCHER#srun-}" --kill-on-bad-exit=1 python3 -m mpicoll.rank) ;;
    *) die "LAUNCHER: expected auto, mpirun or srun-NAME with a NAME out of \`srun --mpi=list\`; given $LAUNCHER" ;;
esac

launch() {
    "${ranks[@]}" "$@"
}

mkdir -p "$RESULTS"
echo "job $SLURM_JOB_ID, $SLURM_JOB_NAME: $SLURM_NTASKS ranks on $SLURM_JOB_NUM_NODES nodes ($SLURM_JOB_NODELIST)"
echo "site $SITE, launcher $LAUNCHER, $mpi, results in $RESULTS"

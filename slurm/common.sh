# shellcheck shell=bash
# What all templates share: the environment, and how ranks start in it.
#
# `launch script.py ...` or `launch -m module ...` then starts the ranks of a Python program. DEVICE is cuda or cpu, and
# the folder RESULTS exists.
set -euo pipefail

die() {
    echo "mpicoll: $*" >&2
    exit 1
}

[[ -n ${SLURM_JOB_ID:-} ]] || die "expected a Slurm job; given none: submit this script with sbatch"

# shellcheck disable=SC2034  # launch.sh reads these, too
given_pml=${OMPI_MCA_pml:-}   # before a preset names one
SITE=${SITE:-auto}   # a preset for the network, or none; auto takes the one that fits the network of the first node
MPICOLL_MODULES=${MPICOLL_MODULES:-}   # modules to load, in place of those of the shell that submits; as they are if empty
MPICOLL_ENV=${MPICOLL_ENV:-}   # virtual environment to activate; the modules' python3 if empty
CONTAINER=${CONTAINER:-}   # image to run in: for Apptainer or Singularity, or a .sqsh or a name for pyxis; none if empty
LAUNCHER=${LAUNCHER:-auto}   # mpirun, srun-NAME (names: `srun --mpi=list`), or auto: srun if it supports the MPI's PMI
BIND=${BIND:-core}   # what each rank is bound to: core (as many as it has), numa or none
DOCTOR=${DOCTOR:-yes}   # no: begin without `mpicoll doctor`, whose report takes time on many nodes
RESULTS=${RESULTS:-${SLURM_SUBMIT_DIR:-.}/${SLURM_JOB_NAME:-job}-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}   # folder for results
mkdir -p "$RESULTS"

set +u   # modules and environments read variables that are unset
if [[ -n $MPICOLL_MODULES ]]; then
    # shellcheck source=/dev/null
    type module &> /dev/null || source /etc/profile || true   # a command in it may fail
    [[ -n ${CRAYPE_VERSION:-} ]] || module purge || true   # on a Cray, the system's own modules are among them
    # shellcheck disable=SC2086  # a list of names
    module load $MPICOLL_MODULES || die "MPICOLL_MODULES: module load $MPICOLL_MODULES failed"
fi
if [[ -n $MPICOLL_ENV ]]; then
    # shellcheck source=/dev/null
    source "$MPICOLL_ENV/bin/activate" || die "MPICOLL_ENV: expected a virtual environment; given $MPICOLL_ENV"
fi
set -u

# Python here, Python in the ranks, and srun's options for a container.
python=(python3) in_ranks=(python3) srun_container=()
if [[ -n $CONTAINER ]]; then
    here=${SLURM_SUBMIT_DIR:-$PWD}
    runtime=$(type -P apptainer || type -P singularity || true)
    if [[ -n $runtime && $CONTAINER != *.sqsh ]]; then
        gpus=$([[ -z ${SLURM_GPUS_ON_NODE:-} ]] || ([[ -e /dev/kfd ]] && echo --rocm || echo --nv))   # AMD's, or NVIDIA's
        python=("$runtime" exec ${gpus:+"$gpus"} --bind "$here,$RESULTS" "$CONTAINER" python3)
        # shellcheck disable=SC2034
        in_ranks=("${python[@]}")
    elif [[ $(srun --help 2>&1) == *--container-image* ]]; then   # of pyxis, Slurm's plugin for enroot
        srun_container=("--container-image=$CONTAINER" "--container-mounts=$here,$RESULTS" "--container-workdir=$here")
        python=(srun --nodes=1 --ntasks=1 --overlap "${srun_container[@]}" python3)
    else
        die "CONTAINER: expected apptainer or singularity on PATH (or its module in MPICOLL_MODULES), or pyxis in Slurm"
    fi
fi

# The rest comes from the mpicoll that is installed: which launcher fits the MPI, and the report at the log's beginning.
# `python3 -m mpicoll.slurm auto` shows it.
launching=$("${python[@]}" -m mpicoll.slurm "$SITE") || die "the lines above say why ${python[*]} -m mpicoll.slurm failed"
eval "$launching"

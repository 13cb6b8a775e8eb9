# shellcheck shell=bash disable=SC2153,SC2154
# How ranks start: the preset of the site, the launcher that fits the MPI, GPUs, and a report of all that.
# `python3 -m mpicoll.slurm SITE` prints this file, with the preset in it. slurm/common.sh runs what is printed.

set -a
# shellcheck source=/dev/null
source "${MPICOLL_SLURM:-${SLURM_SUBMIT_DIR:-.}/slurm}/sites/$SITE.env"
set +a

unset SLURM_EXPORT_ENV   # srun would take sbatch's --export from it, and what is set here must reach the ranks
export PYTHONUNBUFFERED=1   # the log has what a rank printed, even if the rank is killed
cores=${SLURM_CPUS_PER_TASK:-1}   # cores of each rank
# salloc says less of its job than sbatch. srun starts one rank on each node, unless the job says more.
job_nodes=${SLURM_JOB_NUM_NODES:-1}
tasks=${SLURM_NTASKS:-$((job_nodes * ${SLURM_NTASKS_PER_NODE:-1}))}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores}

# -- The launcher ----------------------------------------------------------------------------------------------------

mpi=$("${python[@]}" -c '
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(*MPI.Get_library_version().replace("\0", "").split())
') || die "${python[*]} cannot load MPI: expected mpi4py, and an MPI library, in MPICOLL_ENV or MPICOLL_MODULES"

# The PMI that each MPI uses when srun starts its ranks. source: https://slurm.schedmd.com/mpi_guide.html
case $mpi in
    *CRAY*) pmi=cray_shasta ;;
    "Open MPI"*)
        pmi=pmix
        # Wheels and containers have no munge. source: https://docs.cscs.ch/software/communication/openmpi
        export PMIX_MCA_psec=${PMIX_MCA_psec:-native}
        # Seconds that a rank waits before it ends the job. The job can then name a killed rank before all ranks end.
        # `ompi_info --all` describes it.
        export OMPI_MCA_opal_abort_delay=${OMPI_MCA_opal_abort_delay:-1}
        # Ranks meet twice in MPI_Init. By Slurm's default way, those of two nodes may not wait for each other there: then
        # an early message ends a rank by a segmentation fault. (Seen with Slurm 22.05: 80 of 200 meetings did not wait,
        # and with ring 0 of 100.) source: https://github.com/open-mpi/ompi/issues/12495
        export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
        ;;
    Intel*)
        pmi=pmi2
        # Its own PMI works only with its mpirun. source: https://slurm.schedmd.com/mpi_guide.html#intel_mpi
        libpmi2=$(PATH=$PATH:/sbin ldconfig -p | awk '/libpmi2\.so(\.0)? / { found = $NF } END { print found }')
        libpmi2=${I_MPI_PMI_LIBRARY:-$libpmi2}
        ;;
    *) pmi=pmi2 ;;
esac
if [[ $LAUNCHER == auto ]]; then
    LAUNCHER=mpirun
    [[ $(srun --mpi=list 2>&1) != *"$pmi"* || -z ${libpmi2-none needed} ]] || LAUNCHER=srun-$pmi
fi

case $BIND in
    # Since Slurm 22.05, srun does not take --cpus-per-task from the job.
    core) srun_bind=("--cpus-per-task=$cores" --cpu-bind=cores) map_by=slot:PE=$cores hydra=core:$cores ;;
    # Tasks fill one socket after the other, as GPUs are numbered. For this, each must have its share of the cores.
    numa)
        fewest=$(grep -oE '^[0-9]+|,[0-9]+' <<< "${SLURM_JOB_CPUS_PER_NODE:-1}" | tr -d , | sort -n | head -n 1)
        on_each=${SLURM_NTASKS_PER_NODE:-$(((tasks + job_nodes - 1) / job_nodes))}
        each=$((fewest > on_each ? fewest / on_each : 1))
        srun_bind=("--cpus-per-task=$each" --cpu-bind=ldoms '--distribution=*:block') map_by=numa hydra=numa
        ;;
    none) srun_bind=(--cpu-bind=none) map_by=slot hydra=none ;;
    *) die "BIND: expected core, numa or none; given $BIND" ;;
esac
# If these are set, srun gives a step only that many CPUs of the job to bind to.
[[ $BIND == core ]] || unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK
# If a rank is killed, launchers name only its process or its node, or another rank that ended because of it. So bash
# stays beside each rank, says that the rank was killed, and ends by the same signal. (If bash ended with an exit code
# instead, MPICH's mpirun could wait for ever.) A signal to the job also reaches bash, and must not end bash before the
# rank. bash starts no process to print the line: other ranks notice at once, and then the launcher kills bash, too.
# shellcheck disable=SC2016  # the inner bash expands these
rank=(bash -c '
    trap : USR1 USR2 TERM
    read -r host < /proc/sys/kernel/hostname
    "$@" && exit
    code=$?
    ((128 < code && code < 193)) || exit "$code"
    number=$((code - 128))
    ((number == 15)) ||   # TERM: a user or Slurm ended the whole job
        echo "mpicoll: rank ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SLURM_PROCID}} on $host ended by signal $number" >&2
    trap - USR1 USR2 TERM
    kill -"$number" $$
    exit "$code"   # if the signal did not end bash
' rank "${in_ranks[@]}" -m mpicoll.rank)
case $LAUNCHER in
    mpirun)
        [[ -z $CONTAINER ]] || die "LAUNCHER: expected srun-$pmi for a CONTAINER, whose mpirun reaches no other node; given mpirun"
        export PRTE_MCA_rmaps_default_mapping_policy=$map_by PRTE_MCA_hwloc_default_binding_policy=$BIND   # Open MPI's
        if [[ $mpi == "Open MPI v4"* ]]; then
            export OMPI_MCA_rmaps_base_mapping_policy=$map_by OMPI_MCA_hwloc_base_binding_policy=$BIND
        fi
        export HYDRA_BINDING=$hydra   # MPICH's
        mpirun=mpirun
        if [[ $mpi == Intel* ]]; then
            # Its mpirun is a shell script that calls this. A signal would end the script and not reach the ranks.
            mpirun=mpiexec.hydra
            export I_MPI_HYDRA_BOOTSTRAP=${I_MPI_HYDRA_BOOTSTRAP:-slurm}
            case $BIND in   # core is its default: each rank gets its share of the cores
                numa) export I_MPI_PIN_DOMAIN=${I_MPI_PIN_DOMAIN:-numa} ;;
                none) export I_MPI_PIN=${I_MPI_PIN:-off} ;;
            esac
        fi
        export SLURM_CPU_BIND=none   # mpirun starts its daemons with srun, which would bind them and the ranks
        ranks=("$mpirun" -n "$tasks" "${rank[@]}")
        ;;
    srun-*)
        # Without --kill-on-bad-exit, the other ranks would wait for a rank that was killed.
        ranks=(srun "--mpi=${LAUNCHER#srun-}" "${srun_bind[@]}" "${srun_container[@]}" --kill-on-bad-exit=1 "${rank[@]}")
        if [[ $mpi == Intel* && $LAUNCHER == srun-pmi2 ]]; then
            export I_MPI_PMI_LIBRARY=$libpmi2
            [[ -n $libpmi2 ]] || die "I_MPI_PMI_LIBRARY: expected the path of Slurm's libpmi2.so; ldconfig knows none"
        fi
        ;;
    *) die "LAUNCHER: expected auto, mpirun or srun-NAME with a NAME out of \`srun --mpi=list\`; given $LAUNCHER" ;;
esac

launch() {
    "${ranks[@]}" "$@"
}

# -- GPUs ------------------------------------------------------------------------------------------------------------

DEVICE=cpu
no_gpus=   # why torch cannot use the job's GPUs
# With --exclusive, Slurm grants a node's GPUs even to a job that asked for none.
if [[ -n ${SLURM_GPUS_ON_NODE:-} && ${SLURM_GPUS_PER_NODE:-} != 0 ]]; then
    if no_gpus=$("${python[@]}" -c '
import sys
try:
    import torch
    torch.zeros(1, device="cuda")
except Exception as e:
    sys.exit(str(e).splitlines()[0])
' 2>&1); then
        DEVICE=cuda no_gpus=
        # MPI takes GPU memory only if this is set, and if mpi4py was built against a library that can.
        # source: https://eth-cscs.github.io/cscs-docs/software/communication/cray-mpich
        # Beside NCCL, such an MPI can wait for ever. So ranks that use NCCL do without it.
        # source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/mpi.html#inter-gpu-communication-with-cuda-aware-mpi
        gpu_support=1
        [[ ,${BACKEND:-},${BACKENDS:-}, != *,nccl,* ]] || gpu_support=0
        export MPICH_GPU_SUPPORT_ENABLED=${MPICH_GPU_SUPPORT_ENABLED:-$gpu_support}
        # source: https://www.intel.com/content/www/us/en/docs/mpi-library/developer-reference-linux/current/gpu-support.html
        export I_MPI_OFFLOAD=${I_MPI_OFFLOAD:-1}
        # The wheel of Open MPI takes GPU memory through the UCX of mpicoll's extra `cuda`, where that is installed. That
        # UCX knows no InfiniBand. Images have MPIs of their own.
        if [[ $gpu_support == 1 && $SITE == ethernet && -z $CONTAINER ]]; then
            # Empty, it lets this setting replace the preset's.
            eval "$(OMPI_MCA_pml=$given_pml "${python[@]}" -c '
from mpicoll.jobs import launcher
print(launcher.gpu_exports())
')"
        fi
    fi
fi

# -- The report ------------------------------------------------------------------------------------------------------

export MPICOLL_DUMP=${MPICOLL_DUMP:-$RESULTS/calls}   # folder for the last calls, if a job fails
echo "job $SLURM_JOB_ID (${SLURM_JOB_NAME:-job}) on ${SLURM_JOB_NODELIST:-$HOSTNAME}, restart ${SLURM_RESTART_COUNT:-0}, results in $RESULTS"
memory=${SLURM_MEM_PER_NODE:+$SLURM_MEM_PER_NODE MB a node}${SLURM_MEM_PER_CPU:+$SLURM_MEM_PER_CPU MB a core}${SLURM_MEM_PER_GPU:+$SLURM_MEM_PER_GPU MB a GPU}
echo "memory ${memory:-as the site gives it}"
echo "starts ranks by: ${ranks[*]:0:${#ranks[@]}-${#rank[@]}}"
echo "site $SITE, launcher $LAUNCHER, bound to $BIND, device $DEVICE, $("${python[@]}" --version): $(type -P "${python[0]}")"
env | grep -E '^(NCCL|UCX|FI|OMPI_MCA|PMIX_MCA|PRTE_MCA|SLURM_PMIX|MPICH|MPIR_CVAR|HYDRA|I_MPI|OMP)_' | sort | sed 's/^/  /' || true
if [[ -n ${unfit:-} ]]; then
    echo "site ethernet takes TCP only, but $HOSTNAME has $unfit: see SITE"
elif [[ $SITE == ethernet ]] && card=$(compgen -G '/sys/class/infiniband/*' || compgen -G '/sys/class/cxi/*'); then
    echo "site ethernet takes TCP only, but $HOSTNAME has a faster network (${card%%$'\n'*}): see SITE"
fi
# Where the ranks are, and what is wrong with them and their nodes. The job ends here if the ranks do not find each other,
# and not for another problem, because some programs run with it.
[[ $DOCTOR == yes || $DOCTOR == no ]] || die "DOCTOR: expected yes or no; given $DOCTOR"
doctor=$RESULTS/doctor${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}.txt
if [[ $DOCTOR == yes ]] && ! launch -m mpicoll doctor --log > "$doctor"; then
    problem="the ranks did not start, or do not find each other"
    case $LAUNCHER in
        mpirun | "srun-$pmi") die "$problem: the lines above say why" ;;
        *) die "LAUNCHER: $problem; this MPI expects srun-$pmi or mpirun; given $LAUNCHER" ;;
    esac
fi
if [[ -n $no_gpus ]]; then
    die "$SLURM_GPUS_ON_NODE GPUs a node were granted, but torch cannot use them (${no_gpus##*$'\n'}): a job for CPUs says --gpus-per-node=0"
fi

#!/usr/bin/env bash
# Starts one worker of a training run, or of a fairseq-clear command that shares its work; srun runs it once per task.
# Adds rank, number of workers, device and rendezvous address.
set -euo pipefail
usage="usage: srun --kill-on-bad-exit=1 $0 [--dry-run] [--port PORT] fairseq-train ARGUMENTS | fairseq-hydra-train ARGUMENTS | examples/train.sh ARGUMENTS | fairseq-clear COMMAND ARGUMENTS"
fail() {
  echo "$0: $1" >&2
  exit 2
}
number() { # NAME: the value of a Slurm variable
  [[ ${!1:-} =~ ^[0-9]+$ ]] || fail "$1=${!1:-}: expected a number; start by srun, which sets it"
  echo "${!1}"
}

port=
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) export LAUNCH_DRY_RUN=1 ;;
    --port)
      if [[ ! ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || [ "$2" -gt 65535 ]; then fail "--port ${2:-}: expected a number from 1 to 65535"; fi
      port=$2
      shift
      ;;
    -*) fail "$1: no such flag; $usage" ;;
    *) break ;;
  esac
  shift
done
[ $# -gt 0 ] || fail "$usage"
trainer=$1
shift
case ${trainer##*/} in
  fairseq-train) style=flags trainer=fairseq-train ;; # found on the PATH below, even if a path is given
  fairseq-hydra-train) style=hydra trainer=fairseq-hydra-train ;;
  train.sh) style=hydra ;;
  fairseq-clear) style=environment ;;
  *) fail "$trainer: expected fairseq-train, fairseq-hydra-train, examples/train.sh or fairseq-clear; $usage" ;;
esac
for argument in "$@"; do
  case $argument in
    --distributed-* | --device-id* | distributed_training.distributed_* | distributed_training.device_id*)
      fail "$argument: the launcher sets this from Slurm's variables; leave it out" ;;
  esac
done

workers=$(number SLURM_NTASKS)
rank=$(number SLURM_PROCID)
local_rank=$(number SLURM_LOCALID)
job=$(number SLURM_JOB_ID)
[ "$rank" -lt "$workers" ] || fail "SLURM_PROCID=$rank of SLURM_NTASKS=$workers: expected a number below it"

backend=nccl
for argument in "$@"; do
  case $argument in --cpu | common.cpu=[Tt]rue | ++common.cpu=[Tt]rue) backend=gloo ;; esac
done
# With --gpus-per-task a worker sees only its own GPU, as number 0; otherwise it sees all GPUs of its node.
device=$local_rank
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  visible=${CUDA_VISIBLE_DEVICES//[^,]/}
  device=$((local_rank % (${#visible} + 1)))
fi

master=
if [ "$workers" -eq 1 ]; then # otherwise fairseq uses every GPU that it sees
  settings=(world-size=1 no-spawn=true)
else
  nodes=${SLURM_STEP_NODELIST:-${SLURM_JOB_NODELIST:-}}
  [ -n "$nodes" ] || fail "SLURM_JOB_NODELIST is not set; start by srun, which sets it"
  hosts=$(scontrol show hostnames "$nodes") || fail "scontrol show hostnames $nodes failed; is Slurm's bin folder on the PATH?"
  # Below the ports that Linux assigns by itself; different for jobs, steps and restarts, which may share a node.
  step=${SLURM_STEP_ID:-0}
  [[ $step =~ ^[0-9]{1,6}$ ]] || step=0
  port=${port:-$((10000 + (job * 17 + step * 5 + ${SLURM_RESTART_COUNT:-0}) % 22000))}
  master=${hosts%%$'\n'*}
  settings=("init-method=tcp://$master:$port" "world-size=$workers" "rank=$rank" "backend=$backend" no-spawn=true)
fi
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH="$project/scripts/slurm/bin:$PATH" PYTHONPATH="$project${PYTHONPATH:+:$PYTHONPATH}"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}

if [ $style = environment ]; then # as torchrun sets it
  variables=()
  if [ "$workers" -gt 1 ]; then
    variables=("WORLD_SIZE=$workers" "RANK=$rank" "LOCAL_RANK=$device" "MASTER_ADDR=$master" "MASTER_PORT=$port")
  fi
  command=(env ${variables[@]+"${variables[@]}"} "${PYTHON:-python}" -m fairseq_clear.cli "$@")
  if [ -n "${LAUNCH_DRY_RUN:-}" ]; then printf '%q ' "${command[@]}" && echo && exit; fi
  exec "${command[@]}"
fi
extra=()
for setting in "${settings[@]}"; do
  name=${setting%%=*} value=${setting#*=}
  if [ $style = hydra ]; then
    extra+=("distributed_training.distributed_${name//-/_}=$value")
  elif [ "$value" = true ]; then
    extra+=("--distributed-$name")
  else
    extra+=("--distributed-$name" "$value")
  fi
done
if [ $style = hydra ]; then extra+=("distributed_training.device_id=$device"); else extra+=(--device-id "$device"); fi

exec "$trainer" "$@" "${extra[@]}"

#!/usr/bin/env bash
# Trains one config of this folder: run.sh CONFIG DATA_BIN CHECKPOINT STS_FOLDER SEED [hydra overrides]
set -euo pipefail
if [ $# -lt 5 ]; then
  echo "usage: $0 CONFIG DATA_BIN CHECKPOINT STS_FOLDER SEED [hydra overrides], CONFIG as in config/" >&2
  exit 2
fi
config=$1 data=$(realpath "$2") start=$(realpath "$3") sts=$(realpath "$4") seed=$5
shift 5
name=$config
for override in "$@"; do
  case $override in +ablation=* | +setting=*) name=${name}_${override#*=} ;; esac # or it would go on from the other's checkpoint
done
cd "$(dirname "$0")/../.."
exec fairseq-hydra-train --config-dir "$PWD/examples/self_guided/config" --config-name "$config" \
  task.data="$data" checkpoint.finetune_from_model="$start" task.eval_sts="$sts" common.seed="$seed" \
  checkpoint.save_dir="checkpoints/self_guided_${name}_$seed" "$@"

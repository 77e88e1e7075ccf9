#!/usr/bin/env bash
# Trains one config of this folder: run.sh CONFIG DATA_BIN CHECKPOINT SEED [hydra overrides]
set -euo pipefail
if [ $# -lt 4 ]; then
  echo "usage: $0 CONFIG DATA_BIN CHECKPOINT SEED [hydra overrides], CONFIG as in config/; DATA_BIN may be -, what the config says" >&2
  exit 2
fi
config=$1 data=$2 start=$(realpath "$3") seed=$4
shift 4
if [ "$data" != - ]; then set -- task.data="$(realpath "$data")" "$@"; fi
name=$config
for override in "$@"; do
  case $override in +ablation=*) name=${name}_${override#*=} ;; esac # or it would go on from the other's checkpoint
done
cd "$(dirname "$0")/../.."
exec fairseq-hydra-train --config-dir "$PWD/examples/views/config" --config-name "$config" \
  checkpoint.finetune_from_model="$start" common.seed="$seed" checkpoint.save_dir="checkpoints/views_${name}_$seed" "$@"

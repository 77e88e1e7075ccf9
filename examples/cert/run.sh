#!/usr/bin/env bash
# Trains one config of this folder: run.sh CONFIG DATA_BIN CHECKPOINT SEED [hydra overrides]
set -euo pipefail
if [ $# -lt 4 ]; then
  echo "usage: $0 CONFIG DATA_BIN CHECKPOINT SEED [hydra overrides], CONFIG as in config/; DATA_BIN may be -, what the config says" >&2
  exit 2
fi
config=$1 data=$2 start=$(realpath "$3") seed=$4
shift 4
if [ "$data" != - ]; then # 100 epochs are the half period of the learning rate, so it must know how many updates they are
  if [ ! -f "$data/clear.json" ]; then
    echo "$0: $data/clear.json: no such file; make the folder with fairseq-clear prepare" >&2
    exit 2
  fi
  texts=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["splits"]["train"]["sentences"])' "$data/clear.json")
  set -- task.data="$(realpath "$data")" optimization.max_update=$((100 * ((texts + 15) / 16))) "$@"
fi
name=$config
for override in "$@"; do
  case $override in +ablation=*) name=${name}_${override#*=} ;; esac # or it would go on from the other's checkpoint
done
cd "$(dirname "$0")/../.."
exec fairseq-hydra-train --config-dir "$PWD/examples/cert/config" --config-name "$config" \
  checkpoint.finetune_from_model="$start" common.seed="$seed" checkpoint.save_dir="checkpoints/cert_${name}_$seed" "$@"

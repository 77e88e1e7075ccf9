#!/usr/bin/env bash
# Trains one recipe: train.sh EXAMPLE/CONFIG DATA_BIN CHECKPOINT SEED [hydra overrides], from any folder.
set -euo pipefail
if [ $# -lt 4 ] || [[ $1 != */* ]]; then
  echo "usage: $0 EXAMPLE/CONFIG DATA_BIN CHECKPOINT SEED [hydra overrides]; declutr/small is examples/declutr/config/small.yaml;" \
    "DATA_BIN or CHECKPOINT may be -, for the value of the config" >&2
  exit 2
fi
quoted() { # a value as a string of hydra, which would read commas and = in a path as its own
  printf %s "$1" | sed "s/'/\\\\'/g; s/^/'/; s/\$/'/"
}
example=${1%%/*} config=${1#*/} data=$2 start=$3 seed=$4
shift 4
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ ! -f "$project/examples/$example/config/$config.yaml" ]; then
  echo "$0: $example/$config: examples/$example/config/$config.yaml does not exist" >&2
  exit 2
fi
# The folder of the run is named after the recipe and the overrides that decide the result. Overrides of length, logging, validation
# and machine are not part of the name, so that the run resumes in the same folder.
name=${example}_$config
for override in "$@"; do
  case $override in
    +ablation=* | +setting=*)
      name=${name}_${override#*=}
      file=$project/examples/$example/config/ablation/${override#*=}.yaml
      if [ "$data" != - ] && [ -f "$file" ] && grep -q '^task:.*\bdata:' "$file"; then
        echo "$0: $override: examples/$example/config/ablation/${override#*=}.yaml names its data folders; give - as DATA_BIN" >&2
        exit 2
      fi
      ;;
    checkpoint.* | common.log* | *common.cpu=* | hydra.* | distributed_training.* | dataset.num_workers=* | dataset.*valid*) ;;
    optimization.max_update=* | optimization.max_epoch=* | optimization.stop_time_hours=*) ;;
    *task.eval_* | *task.persistent_workers=* | *model.compile=*) ;;
    *) # task.augment="del-span:spans=5" gives augment-del-span-spans-5: hydra parses the name, so other characters are replaced
      key=${override%%=*}
      value=$(printf %s "${override#*=}" | tr -d "\"'" | tr -c 'A-Za-z0-9.' - | tr -s -)
      name=${name}_${key##*.}-${value%-}
      ;;
  esac
done
if [ ${#name} -gt 120 ]; then name=${name:0:100}_$(printf %s "$name" | cksum | cut -d' ' -f1); fi
name=${name}_$seed
if [ "$start" != - ]; then set -- checkpoint.finetune_from_model="$(quoted "$start")" "$@"; fi
if [ "$data" != - ]; then
  if [ "$example" = cert ]; then # the cosine schedule needs the number of updates of 100 epochs, its half period
    if [ ! -f "$data/clear.json" ]; then
      echo "$0: $data/clear.json: no such file; make the folder with fairseq-clear prepare" >&2
      exit 2
    fi
    texts=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["splits"]["train"]["sentences"])' "$data/clear.json")
    set -- optimization.max_update=$((100 * ((texts + 15) / 16))) "$@"
  fi
  set -- task.data="$(quoted "$data")" "$@"
fi
# hides warnings of hydra 1.3 about fairseq, which come before the plugin is loaded
for module in fairseq_cli.hydra_train hydra.core.default_element hydra.main sys; do
  PYTHONWARNINGS=${PYTHONWARNINGS:+$PYTHONWARNINGS,}ignore::UserWarning:$module
done
export PYTHONWARNINGS
if [ "${SLURM_PROCID:-0}" = 0 ]; then echo "$0: $example/$config, seed $seed, into checkpoints/$name (loading fairseq takes some seconds)" >&2; fi
exec fairseq-hydra-train --config-dir "$project/examples/$example/config" --config-name "$config" \
  common.user_dir="$(quoted "$project/fairseq_clear")" common.seed="$seed" checkpoint.save_dir="checkpoints/$name" "$@"

#!/usr/bin/env bash
# Prepares GLUE's tasks, fine-tunes a checkpoint and prints the table: run.sh CHECKPOINT DATA_BIN GLUE_DIR RECIPE TASK... [-- flags of glue run]
set -euo pipefail
if [ $# -lt 5 ]; then
  echo "usage: $0 CHECKPOINT DATA_BIN GLUE_DIR clear|cert TASK... [-- flags of fairseq-clear glue run]" >&2
  exit 2
fi
checkpoint=$1 data_bin=$2 glue_dir=$3 recipe=$4
shift 4
tasks=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  tasks+=("$1")
  shift
done
[ "${1:-}" != -- ] || shift
longest=512
[ "$recipe" != cert ] || longest=128
for task in "${tasks[@]}"; do # tasks that are prepared already are kept
  [ -d "glue-bin/$task" ] ||
    fairseq-clear glue prepare --glue-dir "$glue_dir" --data-bin "$data_bin" --tasks "$task" --max-length "$longest"
done
exec fairseq-clear glue run --checkpoint "$checkpoint" --data glue-bin --recipe "$recipe" --tasks "${tasks[@]}" "$@"

#!/usr/bin/env bash
# Trains one config of this folder: run.sh CONFIG DATA_BIN [hydra overrides]
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 CONFIG DATA_BIN [hydra overrides], CONFIG being base or tiny" >&2
  exit 2
fi
config=$1 data=$(realpath "$2")
shift 2
cd "$(dirname "$0")/../.."
exec fairseq-hydra-train --config-dir "$PWD/examples/clear/config" --config-name "$config" task.data="$data" "$@"

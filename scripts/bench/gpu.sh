#!/usr/bin/env bash
# The benchmarks that need a GPU, on a machine with its own torch: scripts/bench/gpu.sh [FOLDER OF WHEELS] [OUTPUT]
# Without a network: make wheelhouse elsewhere, bring the folder along. PYTHON names the Python whose torch sees the GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

wheels=${1:-wheelhouse} output=${2:-build/gpu} python=${PYTHON:-python3}
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "gpu.sh: the torch of $python sees no GPU, or there is none; name another with PYTHON=" >&2; exit 2; }
if ! "$python" -c 'import fairseq' 2>/dev/null; then
  [ -d "$wheels" ] || { echo "gpu.sh: $python has no fairseq, and there is no folder $wheels: make wheelhouse on a machine with a network" >&2; exit 2; }
  "$python" -m pip install -q --no-index --no-deps --target build/gpu-site "$wheels"/*.whl
fi
# after what the machine has: its own torch and numpy are the ones that fit it
export PYTHONPATH=$PWD:build/gpu-site:${PYTHONPATH:-}
mkdir -p "$output"
nvidia-smi | tee "$output/nvidia-smi.txt"
"$python" -W ignore scripts/bench/gpu.py --json "$output/gpu.json"
"$python" -W ignore scripts/bench/encode.py --device cuda --json "$output/encode.json"

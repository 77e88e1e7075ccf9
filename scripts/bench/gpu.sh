#!/usr/bin/env bash
# Runs the benchmarks that need a GPU, on a machine that has torch installed: scripts/bench/gpu.sh [FOLDER OF WHEELS] [OUTPUT]
# If the machine has no network, run make wheelhouse elsewhere and copy the folder. PYTHON names the Python whose torch sees the GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

wheels=${1:-wheelhouse} output=${2:-build/gpu} python=${PYTHON:-python3}
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo "gpu.sh: torch of $python is missing or sees no GPU; name another Python with PYTHON=" >&2; exit 2; }
# The wheels contain neither torch nor numpy, so the machine's own are used.
export PYTHONPATH=$PWD:$PWD/build/gpu-site${PYTHONPATH:+:$PYTHONPATH}
if compgen -G "$wheels/*.whl" >/dev/null && ! "$python" -m pip install -q --no-index --no-deps --upgrade --target build/gpu-site "$wheels"/*.whl; then
  echo "gpu.sh: the wheels of $wheels do not fit $python; its own packages are used" >&2
fi
"$python" -c 'import fairseq' 2>/dev/null || { echo "gpu.sh: $python has no fairseq, and folder $wheels has no wheel of it; run make wheelhouse on a machine with a network and copy it" >&2; exit 2; }
mkdir -p "$output"
nvidia-smi | tee "$output/nvidia-smi.txt" || true # a container may lack it
status=0 # of the first benchmark: if it fails, the second still runs
"$python" -W ignore scripts/bench/gpu.py --json "$output/gpu.json" || status=$?
"$python" -W ignore scripts/bench/encode.py --device cuda --json "$output/encode.json"
exit "$status"

#!/usr/bin/env bash
# Makes wheels of all packages except torch and numpy, for a machine without a network: scripts/wheelhouse.sh [FOLDER]
# They work with the Python version of .venv (for another: make wheelhouse PYTHON=python3.12) and with this kind of processor.
# WHEELS='hydra-core|omegaconf|...' makes those alone, besides fairseq and this project, for a machine that has the others.
# Install them on the machine, which must have torch and numpy: python -m pip install --no-index --no-deps FOLDER/*.whl
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-wheelhouse}
python=.venv/bin/python
[ -f .venv/.installed ] || { echo "wheelhouse: .venv is missing or incomplete, and fairseq is built with its torch: run make install first" >&2; exit 2; }
if [ -e "$folder" ]; then
  echo "wheelhouse: $folder exists already: remove it, or name another folder" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pin() { grep -E "^$1==" requirements.txt; }
wheel() { "$python" -m pip wheel -q --no-deps --wheel-dir "$work/wheels" "$@"; }

# Extensions that are compiled with numpy 2 also work with numpy 1.26, but not the reverse.
"$python" -m pip install -q --no-deps --target "$work/numpy" 'numpy>=2,<3'
echo "wheelhouse: building fairseq (about 4 minutes on 2 cores)"
PYTHONPATH=$work/numpy wheel --no-build-isolation --no-cache-dir "$(pin fairseq-fixed)"
grep -E '^[A-Za-z]' requirements.txt | grep -vE '^(torch|numpy|fairseq-fixed)==' | grep -E "^(${WHEELS:-.*})==" >"$work/others.txt" ||
  { echo "wheelhouse: WHEELS=$WHEELS names no package of requirements.txt" >&2; exit 2; }
wheel -r "$work/others.txt"
rm -rf build/lib # of an earlier build, which setuptools would add to the wheel
wheel --no-build-isolation .

# The folder gets its name only when it is complete.
mv "$work/wheels" "$folder"
echo "wheelhouse: $(find "$folder" -name '*.whl' | wc -l) wheels in $folder, $(du -sm "$folder" | cut -f1) MB, for $("$python" -V); on the machine: python -m pip install --no-index --no-deps $folder/*.whl"

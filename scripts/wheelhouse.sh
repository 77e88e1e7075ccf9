#!/usr/bin/env bash
# Wheels of everything but torch and numpy, for a machine without a network that has its own: scripts/wheelhouse.sh [FOLDER]
# They are for the Python of .venv (make install PYTHON=python3.12 makes another) and for this kind of processor. On the machine:
#   python -m pip install --no-index --no-deps FOLDER/*.whl
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-wheelhouse}
python=.venv/bin/python
[ -f .venv/.installed ] || { echo "wheelhouse: no finished .venv here, whose torch fairseq is built with: run make install first" >&2; exit 2; }
if [ -e "$folder" ]; then
  echo "wheelhouse: $folder is there already: remove it, or name another folder" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pin() { grep -E "^$1==" requirements.txt; }
wheel() { "$python" -m pip wheel -q --no-deps --wheel-dir "$work/wheels" "$@"; }

# fairseq's extensions are compiled against numpy 2, with which they run on 1.26 too; compiled against 1.26 they would not on 2.
"$python" -m pip install -q --no-deps --target "$work/numpy" 'numpy>=2,<3'
echo "wheelhouse: building fairseq (about 4 minutes on 2 cores)"
PYTHONPATH=$work/numpy wheel --no-build-isolation --no-cache-dir "$(pin fairseq-fixed)"
grep -E '^[A-Za-z]' requirements.txt | grep -vE '^(torch|numpy|fairseq-fixed)==' >"$work/others.txt"
wheel -r "$work/others.txt"
wheel --no-build-isolation .

# under its name only when whole
mv "$work/wheels" "$folder"
echo "wheelhouse: $(find "$folder" -name '*.whl' | wc -l) wheels in $folder, $(du -sm "$folder" | cut -f1) MB, for $("$python" -V); on the machine: python -m pip install --no-index --no-deps $folder/*.whl"

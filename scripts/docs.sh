#!/usr/bin/env bash
# Builds the site from docs/ into build/site, in strict mode: a broken link or a missing anchor is an error. Needs .venv (make install).
# The tools are in a separate environment that also uses the packages of .venv. Only the first call needs a network.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=build/docs-venv
stamp=$venv/.installed
wanted=$(cat docs/requirements.txt requirements.txt <(.venv/bin/python -V) | sha256sum | cut -d' ' -f1)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  .venv/bin/python -m venv --clear "$venv"
  "$venv/bin/python" -m pip install -q --no-deps -r docs/requirements.txt
  libraries=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$libraries/project.pth"
  echo "$wanted" >"$stamp"
fi
OMP_NUM_THREADS=1 "$venv/bin/python" -W ignore -m properdocs build --strict --config-file properdocs.yml
echo "docs: build/site/index.html"

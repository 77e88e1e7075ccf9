#!/usr/bin/env bash
# Builds sdist and wheel in dist/, installs the wheel in an empty environment by the commands of docs/getting-started.md, and runs
# README's first training run from it in an empty folder. Needs git, and a network or pip's cache; takes about ten minutes on 2 cores.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."

root=$PWD
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "release-check: $*" >&2; exit 1; }
# The commands of the bash blocks below a heading of a page: commands PAGE HEADING
commands() {
  awk -v heading="$2" '/^#/ && !code { found = ($0 == heading) } /^ *```/ { code = !code && /bash/; next } found && code' "$1"
}

# 1. Build from the tracked files alone: build/ and *.egg-info of earlier builds may hold files that are gone.
mkdir "$work/source"
git ls-files -z | tar --null -T - -c | tar -x -C "$work/source"
"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install -qq build twine
rm -rf dist
"$work/tools/bin/python" -m build --outdir dist "$work/source" >"$work/build.log" 2>&1 || { tail -n 30 "$work/build.log" >&2; fail "the build failed"; }
wheels=(dist/*.whl)
wheel=$root/${wheels[0]}
"$work/tools/bin/twine" check --strict dist/* || fail "twine rejects the metadata"

# 2. The wheel holds the files of the package and nothing else.
diff <(git ls-files fairseq_clear | LC_ALL=C sort) \
  <("$python" -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep="\n")' "$wheel" |
    grep -v '^fairseq_clear-[^/]*\.dist-info/' | LC_ALL=C sort) || fail "the wheel (>) differs from the tracked files of fairseq_clear (<)"

# 3. Install it as the guide says.
commands docs/getting-started.md "### From a wheel" >"$work/install.sh"
[ "$(wc -l <"$work/install.sh")" -eq 3 ] || fail "docs/getting-started.md, From a wheel: not three commands"
"$python" -m venv "$work/venv"
PATH=$work/venv/bin:$PATH
mkdir "$work/empty"
cd "$work/empty"
cp "$wheel" .
echo "release-check: installing (fairseq is compiled the first time, about 4 minutes on 2 cores)"
bash -e "$work/install.sh" >"$work/install.log" 2>&1 || { tail -n 30 "$work/install.log" >&2; fail "the installation failed"; }
rm ./*.whl
python - <<'CHECK'
from importlib.metadata import metadata

found = metadata("fairseq_clear")
missing = {"refine", "eval", "translate", "export", "hf", "split"} - set(found.get_all("Provides-Extra"))
assert not missing, f"release-check: extras missing from the metadata: {missing}"
licence = found["License-Expression"] or found["License"]
assert licence == "MIT", f"release-check: licence {licence!r}"
assert "## Results" in found["Description"], "release-check: README is missing from the metadata"
CHECK
user_dir=$(fairseq-clear user-dir)
case $user_dir in "$work"/*) ;; *) fail "user-dir prints $user_dir, which is not the installed package" ;; esac
fairseq-clear doctor >"$work/doctor.log" || { cat "$work/doctor.log" >&2; fail "doctor finds problems"; }

# 4. README's first training run, on the text that make install makes.
python "$root/scripts/sample.py"
commands "$root/README.md" "## A first training run" >"$work/quickstart.sh"
grep -q "user-dir \"\$(fairseq-clear user-dir)\"" "$work/quickstart.sh" || fail "README's first training run does not use fairseq-clear user-dir"
bash -ex "$work/quickstart.sh" >"$work/quickstart.log" 2>&1 || { tail -n 30 "$work/quickstart.log" >&2; fail "README's first training run failed"; }
python -c 'import numpy; assert numpy.load("vectors.npy").shape == (2, 128)'
[ -f encoder/modules.json ] || fail "README's first training run exported nothing"

echo "release-check: ok: $(cd "$root" && echo dist/*) ($("$python" -V), $(python -m pip list 2>/dev/null | awk '$1 == "torch" || $1 == "numpy" || $1 == "transformers" { printf "%s%s %s", s, $1, $2; s = ", " }'))"

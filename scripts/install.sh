#!/usr/bin/env bash
# Makes .venv with the exact versions of requirements.txt. Does nothing if .venv is up to date (see the stamp file).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
command -v "$python" >/dev/null || { echo "install: '$python' is not on the PATH; install Python 3.11 or 3.12, or name one: make install PYTHON=/path/to/python3.11" >&2; exit 2; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case "$version" in
  3.11 | 3.12) ;;
  *)
    echo "install: $python is Python $version; fairseq_clear needs 3.11 or 3.12. Name one: make install PYTHON=/path/to/python3.11" >&2
    exit 2
    ;;
esac

stamp=$venv/.installed
wanted=$(cat requirements.txt setup.py scripts/install.sh scripts/sample.py <(echo "$version") | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
rm -f "$stamp"

pin() { grep -E "^$1==" requirements.txt; }
# an environment of another Python, or one that was interrupted, is made anew
has() { "$venv/bin/python" -c 'import sys, pip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }
[ "$(has)" = "$version" ] || "$python" -m venv --clear "$venv"
pip() { "$venv/bin/python" -m pip "$@"; }

# 1. torch with its dependencies: pip chooses the build that this machine is configured for.
pip install -q "$(pin torch)" "$(pin numpy)"
# 2. Build tools of fairseq. Its build must use the torch and numpy above, hence --no-build-isolation below:
#    an isolated build would download another torch.
pip install -q "$(pin cython)" "$(pin ninja)" "$(pin setuptools)" "$(pin wheel)"
# 3. fairseq without its dependencies: torchaudio is only for speech, and its CUDA wheel does not work with a CPU torch.
echo "install: building fairseq (about 4 minutes on 2 cores the first time, later from pip's cache)"
pip install -q --no-build-isolation --no-deps "$(pin fairseq-fixed)"
# 4. All other packages. All versions are pinned, so pip has nothing to resolve.
pip install -q --no-deps -r requirements.txt
pip install -q --no-build-isolation --no-deps -e .
# 5. pip's cache may hold a fairseq wheel that was built against another torch or numpy, whose compiled parts do not load.
#    This is checked last, because fairseq imports packages of step 4.
loads() { "$venv/bin/python" -c "import fairseq.libbleu, fairseq.data.data_utils_fast, fairseq.data.token_block_utils_fast" 2>/dev/null; }
if ! loads; then
  echo "install: the fairseq wheel in pip's cache was built against another torch or numpy; building it again"
  pip cache remove -q fairseq_fixed || true # fails without a cache (PIP_NO_CACHE_DIR)
  pip install -q --no-build-isolation --no-deps --force-reinstall --no-binary fairseq-fixed "$(pin fairseq-fixed)"
  loads || { echo "install: fairseq's compiled parts do not load; see: $venv/bin/python -c 'import fairseq.data.data_utils_fast'" >&2; exit 1; }
fi
# 6. A text and an encoder for the first commands of README.
"$venv/bin/python" scripts/sample.py sample
echo "$wanted" >"$stamp"
echo "install: done; activate with: source $venv/bin/activate"

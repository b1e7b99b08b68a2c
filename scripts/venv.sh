#!/usr/bin/env bash
# Makes .venv right for one purpose and does nothing when it already is.
#   scripts/venv.sh run     what planning needs: no torch, no test tools
#   scripts/venv.sh train   the same plus PyTorch for processors (constraints/cpu.txt) and transformers
#   scripts/venv.sh dev     the same plus tests, linter and type checker
# PYTHON chooses the interpreter; otherwise the first Python 3.11 or newer on PATH is taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purpose="${1:-run}"
case "$purpose" in
  run) target="." ;;
  train) target=".[train]" ;;
  dev) target=".[dev]" ;;
  *) echo "scripts/venv.sh: unknown purpose '$purpose'; say run, train or dev" >&2; exit 2 ;;
esac

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
    if is_new_enough "$candidate"; then echo "$candidate"; return; fi
  done
  echo "scripts/venv.sh: no Python 3.11 or newer on PATH; set PYTHON=/path/to/python3.11" >&2
  exit 1
}

# What the environment was made from.
fingerprint() { cat pyproject.toml constraints/*.txt | cksum | tr -d ' \n'; }

# A virtual environment cannot be moved: its programs name the interpreter by its full path. A link to one is no move.
is_at_home() { grep -qF "$(readlink -f .venv)/bin/python" .venv/bin/pip 2>/dev/null; }

wanted="$(fingerprint)"
is_current() { [ -f ".venv/.stamp-$1" ] && [ "$(cat ".venv/.stamp-$1")" = "$wanted" ]; }

if is_new_enough .venv/bin/python && is_at_home; then
  if is_current "$purpose" || is_current dev || { [ "$purpose" = run ] && is_current train; }; then exit 0; fi
else
  python="$(find_python)"
  echo "Creating .venv with $("$python" --version)"
  "$python" -m venv --clear .venv || {
    echo "scripts/venv.sh: '$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  }
fi

echo "Installing shardwise ($purpose) into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -c constraints/dev.txt -e "$target"
rm -f .venv/.stamp-*
echo "$wanted" > ".venv/.stamp-$purpose"

#!/usr/bin/env bash
# Prints a Python that can import pytest and hypothesis: the system's, or one in build/venv that is
# made on the first call. Prints nothing and exits 1 when there is no way; the reason is on stderr.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/build/venv

can_test() { "$1" -c 'import pytest, hypothesis' 2>/dev/null; }

for python in "${PYTHON:-python3}" "$venv/bin/python"; do
  path=$(command -v "$python") || continue
  if can_test "$path"; then
    "$path" -c 'import sys; print(sys.executable)'
    exit 0
  fi
done

command -v python3 >/dev/null || { echo "there is no python3" >&2; exit 1; }
if python3 -m venv "$venv" >/dev/null 2>&1 &&
   "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
     -r "$root/tests/requirements.txt" >/dev/null 2>&1 && can_test "$venv/bin/python"; then
  echo "$venv/bin/python"
  exit 0
fi
echo "pytest and hypothesis are not installed, and installing them in build/venv failed" >&2
exit 1

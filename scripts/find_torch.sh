#!/usr/bin/env bash
# Prints a Python that can import PyTorch, pytest and scikit-build-core.
#
#   scripts/find_torch.sh current    the one at hand if it has PyTorch, or else one with the newest PyTorch in
#                                    build/torch-current
#   scripts/find_torch.sh 2.0.1      one with that version and an old Python, in build/torch-2.0.1
#
# Environments are made on the first call. Where that fails nothing is printed, the reason is on stderr and the
# exit status is 1.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
version=$1
venv=$root/build/torch-$version

can_test() { # python
  "$1" - "$version" 2>/dev/null <<'END'
import sys
import pytest, scikit_build_core, torch
assert sys.argv[1] == "current" or torch.__version__.split("+")[0] == sys.argv[1]
END
}

for python in "${PYTHON:-python3}" "$venv/bin/python"; do
  path=$(command -v "$python") || continue
  if can_test "$path"; then
    "$path" -c 'import sys; print(sys.executable)'
    exit 0
  fi
done

packages=(torch)
pythons=("${PYTHON:-python3}")
if [ "$version" != current ]; then
  # Its C extensions want the NumPy of its time.
  packages=("torch==$version" "numpy<2")
  # The oldest Python there is: it is what is promised, and from 3.11 on that version has no torch.compile.
  pythons=()
  for minor in 8 9 10 11; do
    pythons+=("python3.$minor" "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/3.$minor".*/bin/python)
  done
  pythons+=("${PYTHON:-python3}")
fi
for python in "${pythons[@]}"; do
  "$python" -c 'import sys' 2>/dev/null || continue
  if "$python" -m venv --clear "$venv" >/dev/null 2>&1 &&
     "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" \
       -r "$root/tests/python/requirements.txt" >"$root/build/torch-$version.log" 2>&1 &&
     can_test "$venv/bin/python"; then
    echo "$venv/bin/python"
    exit 0
  fi
done
echo "PyTorch ($version) cannot be imported, and installing it in build/torch-$version failed" \
     "($(tail -n 1 "$root/build/torch-$version.log" 2>/dev/null || echo "there is no Python with venv"))" >&2
exit 1

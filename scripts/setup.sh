#!/usr/bin/env bash
# Makes sure that a C compiler and CMake are here. Where they are missing and this is root on a system
# with apt-get, they are installed; otherwise one line says what to install.
set -euo pipefail

missing=()
command -v "${CC:-cc}" >/dev/null || missing+=(gcc libc6-dev)
command -v cmake >/dev/null || missing+=(cmake)
if [ "${1:-}" = test ]; then
  command -v python3 >/dev/null || missing+=(python3 python3-venv)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update >/dev/null && apt-get install -y --no-install-recommends "${missing[@]}" >/dev/null
  } || { echo "missing and not installable here: ${missing[*]}" >&2; exit 1; }
else
  echo "missing: ${missing[*]}: please install (as root: apt-get install ${missing[*]})" >&2
  exit 1
fi

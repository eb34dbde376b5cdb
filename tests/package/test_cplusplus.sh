#!/bin/sh
# Compiles header.cpp as C++11 with warnings as errors, links it with the library and runs it.
#
#   test_cplusplus.sh INCLUDE_DIR LIBRARY EXTRA_FLAGS
set -eu
include=$1 library=$2 flags=$3
here=$(cd "$(dirname "$0")" && pwd)
for compiler in ${CXX:-} g++ clang++ c++; do
  command -v "$compiler" >/dev/null && break
  compiler=
done
if [ -z "$compiler" ]; then
  echo "skip: the header in C++: there is no C++ compiler"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for standard in c++11 c++17; do
  # shellcheck disable=SC2086 # the flags are words to be split
  "$compiler" -std=$standard -Wall -Wextra -Wpedantic -Werror $flags -I"$include" "$here/header.cpp" \
              "$library" -Wl,-rpath,"$(dirname "$library")" -o "$work/header"
  "$work/header"
  echo "$compiler -std=$standard: right"
done

#!/bin/sh
# The sources that clang-format and the linters look at, one a line.
cd "$(dirname "$0")/.." || exit 1
find include src cli python examples tests bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort

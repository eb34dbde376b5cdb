#!/bin/sh
# The library is small enough to be shipped inside of something else, kernels for every GPU and all.
#
#   test_size.sh LIBRARY MOST_BYTES
set -eu
size=$(wc -c <"$1")
echo "$(basename "$1"): $size bytes, at most $2"
[ "$size" -le "$2" ]

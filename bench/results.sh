#!/usr/bin/env bash
# The measurements on a CPU that docs/results holds, as JSON lines: tensors of at least 256 MiB, so that no cache
# holds them. Takes about two minutes and 3 GiB of memory.
#
#   bench/results.sh [THREADS] >docs/results/NAME.jsonl
set -euo pipefail
cd "$(dirname "$0")/.."
onepass=${ONEPASS_CLI:-build/release/cli/onepass}
threads=${1:-$(nproc)}

line() { "$onepass" bench --device cpu --json --threads "$threads" --op "$@"; }

line l1_norm --shape 1024x65535
line layer_norm --shape 65536x1024
line layer_norm --shape 16x64x256x256
line avg_pool1d --shape 8x128x65536 --kernel 8 --stride 1 --padding 4

line l1_norm --shape 2048x65535 --dtype bf16
line layer_norm --shape 131072x1024 --dtype bf16
line layer_norm --shape 32x64x256x256 --dtype bf16
line avg_pool1d --shape 16x128x65536 --kernel 8 --stride 1 --padding 4 --dtype bf16

for columns in 4096 4095; do
  line l1_norm --shape "16384x$columns" --dir fwd
  line layer_norm --shape "16384x$columns" --dir fwd
done

#!/usr/bin/env bash
# Fuzzes plan creation with libFuzzer under ASan and UBSan, for FUZZ_SECONDS (60). Exits 77, with the
# reason, where Clang or libFuzzer is missing; the standalone driver has then to do.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
build=build/fuzz

if ! command -v clang >/dev/null; then
  echo "skip: libFuzzer: there is no clang"
  exit 77
fi
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n);
int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return n > 9 && d[0] == 1; }' \
  >"$probe/probe.c"
if ! clang -fsanitize=fuzzer,address,undefined "$probe/probe.c" -o "$probe/probe" 2>/dev/null; then
  echo "skip: libFuzzer: this clang cannot link with -fsanitize=fuzzer,address,undefined"
  exit 77
fi

# POSIX threads, because Clang often comes without its OpenMP library. No CUDA: kernels take minutes to
# compile, and the standalone driver fuzzes plans for a GPU where there is one.
cmake -S . -B "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
      -DCMAKE_C_FLAGS_DEBUG="-O1 -g" -DONEPASS_OPENMP=OFF -DONEPASS_CUDA=OFF -DONEPASS_CLI=OFF \
      -DONEPASS_EXAMPLES=OFF -DONEPASS_FUZZ=ON >/dev/null
cmake --build "$build" --target fuzz_plan -j"$(nproc)"

# The corpus lives in the build folder and grows from run to run.
mkdir -p "$build/corpus"
"$build/tests/fuzz_plan" -seed=1 -runs=200000 -max_total_time="$seconds" -max_len=1024 -timeout=20 -rss_limit_mb=4096 \
  -print_final_stats=1 -artifact_prefix="$build/" "$build/corpus" 2>"$build/fuzz.log" || {
    tail -60 "$build/fuzz.log"
    exit 1
  }
grep -E '^(stat::number_of_executed_units|Done )' "$build/fuzz.log" || tail -3 "$build/fuzz.log"

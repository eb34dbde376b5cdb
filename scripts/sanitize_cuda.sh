#!/usr/bin/env bash
# Runs every CUDA kernel, with cuda_kernels, cuda_cells and cuda_pools, under compute-sanitizer's tools:
#
#   memcheck   reads and writes outside of memory, and memory that is not freed
#   racecheck  threads of a block that touch shared memory without waiting for each other
#   initcheck  reads of device memory that nothing has written
#   synccheck  barriers that not all of their threads reach
#
#   scripts/sanitize_cuda.sh [TOOL...]
#
# BUILD (build/release) has the tests; TYPES ("f32 f64 f16 bf16") are the element types to run, TRIALS (60) how many
# random norms of channels cuda_cells draws. Logs are in BUILD/sanitize. One line a tool sums up what it found; exits 1 if any found something, and 77 with
# the reason where there is no compute-sanitizer or no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build/release}
types=${TYPES:-f32 f64 f16 bf16}
programs=("$build/tests/cuda_kernels" "$build/tests/cuda_cells" "$build/tests/cuda_pools")
export ONEPASS_TEST_TRIALS=${TRIALS:-60}
logs=$build/sanitize

skip() {
  echo "skip: compute-sanitizer: $1"
  exit 77
}

find_sanitizer() {
  command -v compute-sanitizer && return
  for folder in "${CUDA_HOME:-/usr/local/cuda}"/bin "${CUDA_HOME:-/usr/local/cuda}"/compute-sanitizer; do
    [ -x "$folder/compute-sanitizer" ] && echo "$folder/compute-sanitizer" && return
  done
  return 1
}

# The lines with which a tool ends, such as "ERROR SUMMARY: 0 errors".
summaries() { grep -oE '(ERROR|LEAK|RACECHECK) SUMMARY: .*' "$1"; }

run_tool() { # name [option...]
  local tool=$1 program log start status verdict
  shift
  for program in "${programs[@]}"; do
    log=$logs/$tool-${program##*/}.log start=$SECONDS verdict=clean
    # shellcheck disable=SC2086 # types are words
    "$sanitizer" --tool "$tool" --error-exitcode 3 "$@" "$program" $types >"$log" 2>&1
    status=$?
    if [ "$status" != 0 ] || ! summaries "$log" | grep -q . ||
      summaries "$log" | grep -qvE 'SUMMARY: 0 '; then
      verdict=FAILED
      failed=1
    fi
    printf '%-9s  %-12s  %-6s  %s  (%d s)\n' "$tool" "${program##*/}" "$verdict" \
      "$(summaries "$log" | paste -sd ';' -)" $((SECONDS - start))
    [ "$verdict" = clean ] || tail -40 "$log"
  done
}

sanitizer=$(find_sanitizer) || skip "it is not installed"
for program in "${programs[@]}"; do
  [ -x "$program" ] || { echo "$program is not there: build the tests first (make)" >&2; exit 1; }
  # Also says whether the kernels are right at all.
  "$program" f32 >/dev/null
  case $? in
    0) ;;
    77) skip "$("$program" f32 | sed 's/^skip: [^:]*: //')" ;;
    *) echo "$program fails by itself" >&2; exit 1 ;;
  esac
done

mkdir -p "$logs"
failed=0
tools=("$@")
[ $# -eq 0 ] && tools=(memcheck racecheck initcheck synccheck)
for tool in "${tools[@]}"; do
  case $tool in
    memcheck) run_tool memcheck --leak-check full ;;
    racecheck | initcheck) run_tool "$tool" ;;
    synccheck) run_tool synccheck --num-cuda-barriers 65536 ;; # stream kernels have many, in every block
    *) echo "unknown tool '$tool'; expected memcheck, racecheck, initcheck or synccheck" >&2; exit 2 ;;
  esac
done
exit "$failed"

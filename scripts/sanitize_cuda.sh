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
# random norms of channels cuda_cells draws, JOBS (as many as there are processors) how many programs run side by side.
# Logs are in BUILD/sanitize. A line for each program sums up what a tool found; exits 1 if any found something, and 77
# with the reason where there is no compute-sanitizer or no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build/release}
types=${TYPES:-f32 f64 f16 bf16}
jobs=${JOBS:-$(nproc)}
programs=(cuda_kernels cuda_cells cuda_pools)
# What runs as one program, those that take the longest first.
parts=("cuda_kernels large" "cuda_kernels norms" "cuda_kernels short" "cuda_kernels long" "cuda_kernels infinite"
  "cuda_pools" "cuda_kernels pools" "cuda_cells" "cuda_kernels ahead" "cuda_kernels far"
  "cuda_kernels singles" "cuda_kernels empty")
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

options_of() { # tool program
  case $1-$2 in
    memcheck-*) echo --leak-check full ;;
    synccheck-cuda_kernels | synccheck-cuda_cells) # stream kernels have up to 104 in every block
      echo --num-cuda-barriers 16384 ;;
  esac
}

# The lines with which a tool ends, such as "ERROR SUMMARY: 0 errors".
summaries() { grep -oE '(ERROR|LEAK|RACECHECK) SUMMARY: .*' "$1"; }

run_one() { # tool type program [part]
  local tool=$1 type=$2 program=$3 part=${4:-} start=$SECONDS verdict=clean status
  local log=$logs/$tool-$program${part:+-$part}-$type.log
  # shellcheck disable=SC2046,SC2086 # options are words, and a part may be none
  "$sanitizer" --tool "$tool" --error-exitcode 3 $(options_of "$tool" "$program") "$build/tests/$program" "$type" $part \
    >"$log" 2>&1
  status=$?
  if [ "$status" != 0 ] || ! summaries "$log" | grep -q . || summaries "$log" | grep -qvE 'SUMMARY: 0 '; then
    verdict=FAILED
  fi
  printf '%-9s  %-19s  %-4s  %-6s  %s; %s  (%d s)\n' "$tool" "$program${part:+ $part}" "$type" "$verdict" \
    "$(summaries "$log" | sed 's/.*SUMMARY: //' | paste -sd ';' - | sed 's/;/; /g')" \
    "$(grep -oE '[0-9]+ checks, [0-9]+ failed' "$log")" $((SECONDS - start))
  [ "$verdict" = clean ] || { tail -40 "$log"; return 1; }
}

sanitizer=$(find_sanitizer) || skip "it is not installed"
for program in "${programs[@]}"; do
  [ -x "$build/tests/$program" ] || { echo "$build/tests/$program is not there: build the tests first (make)" >&2; exit 1; }
done
probe=$("$build/tests/cuda_kernels" f32 empty)
[ $? = 77 ] && skip "$(sed 's/^skip: [^:]*: //' <<<"$probe")"

tools=("$@")
[ $# -eq 0 ] && tools=(racecheck synccheck initcheck memcheck)
for tool in "${tools[@]}"; do
  case $tool in
    memcheck | racecheck | initcheck | synccheck) ;;
    *) echo "unknown tool '$tool'; expected memcheck, racecheck, initcheck or synccheck" >&2; exit 2 ;;
  esac
done

mkdir -p "$logs"
failed=0 running=0
for part in "${parts[@]}"; do
  for tool in "${tools[@]}"; do
    for type in $types; do
      if [ "$running" -ge "$jobs" ]; then
        wait -n || failed=1
        running=$((running - 1))
      fi
      # shellcheck disable=SC2086 # a program, and its part
      run_one "$tool" "$type" $part &
      running=$((running + 1))
    done
  done
done
while [ "$running" -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit "$failed"

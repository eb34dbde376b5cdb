#!/usr/bin/env bash
# The whole suite, stage by stage:
#
#   format    the sources are as clang-format has them
#   release   warnings are errors; every test
#   asan      the same under AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan      the thread tests under ThreadSanitizer
#   clang     compiles without a warning with Clang, too; the C tests and onepass check --quick
#   python    the PyTorch package and its judge, with the newest PyTorch and with 2.0.1; on a GPU, too
#   cuda      every CUDA kernel under compute-sanitizer; needs a GPU
#   emulated  every CUDA kernel on a GPU made of the CPU; needs nvcc's headers and g++
#   valgrind  onepass check --quick loses no memory
#   fuzz      any bytes as a description are a status
#
#   scripts/test.sh [STAGE...]
#
# The release build compiles the CUDA kernels, where there is an nvcc; asan, clang and python take them
# from it. What needs a tool or a GPU that is not here is skipped and listed with its reason at the end.
# With CI=true a missing Python, pytest, hypothesis or PyTorch is a failure instead.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

jobs=$(nproc)
skips=$(mktemp)
trap 'rm -f "$skips"' EXIT
results=()
failed=0

# What opens the CUDA driver needs these under AddressSanitizer; tests/CMakeLists.txt says why.
export ASAN_OPTIONS=${ASAN_OPTIONS:-protect_shadow_gap=0}
export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/tests/c/driver_leaks.txt}

skip() { echo "skip: $1" | tee -a "$skips"; }

# What tests have skipped by themselves, from CTest's log.
collect_skips() {
  local log=$1/Testing/Temporary/LastTest.log
  [ -f "$log" ] && grep -hE '^(skip: |SKIPPED )' "$log" >>"$skips"
  return 0
}

configure_and_build() { # preset [option...]
  local preset=$1
  shift
  cmake --preset "$preset" -DONEPASS_PYTHON="$python" "$@" >"build/$preset.log" || {
    cat "build/$preset.log"
    return 1
  }
  cmake --build "build/$preset" -j"$jobs"
}

# Options for a build with the kernels of the release build, or else with none: they take minutes to
# compile, and are the same in every build.
options_for_cuda() {
  local kernels=$PWD/build/release/kernels family
  for family in norm pool; do
    compgen -G "$kernels/${family}_sm_*.tar.xz" >/dev/null || { echo -DONEPASS_CUDA=OFF; return; }
  done
  printf '%s\n' -DONEPASS_CUDA=AUTO "-DONEPASS_KERNELS=$kernels"
}

build_asan() {
  local cuda
  mapfile -t cuda < <(options_for_cuda)
  configure_and_build asan "${cuda[@]}"
}

# The C tests side by side, then the Python ones likewise: the scripts that the build has made for pytest, as
# CTest would hide what they print. All run whatever happens.
run_all_tests() { # folder
  local status=0 script
  local -A running=()
  ctest --test-dir "$1" --output-on-failure -j"$jobs" -LE python || status=1
  collect_skips "$1"
  for script in "$1"/tests/*_tests.sh; do
    sh "$script" >"$script.log" 2>&1 &
    running[$script]=$!
  done
  for script in "${!running[@]}"; do
    wait "${running[$script]}"
    [[ $? = 0 || $? = 77 ]] || status=1
    printf '\n-- %s\n' "$(basename "$script" .sh)"
    cat "$script.log"
    grep -hE '^(skip: |SKIPPED )' "$script.log" >>"$skips"
  done
  return "$status"
}

stage_format() {
  if ! command -v clang-format >/dev/null; then
    skip "the format of the sources: there is no clang-format"
    return 0
  fi
  scripts/sources.sh | xargs clang-format --dry-run -Werror
}

stage_release() { configure_and_build release && run_all_tests build/release; }

stage_asan() { build_asan && run_all_tests build/asan; }

stage_tsan() {
  # POSIX threads: ThreadSanitizer does not see what libgomp's own barriers order.
  configure_and_build tsan -DONEPASS_CLI=OFF -DONEPASS_EXAMPLES=OFF || return 1
  ctest --test-dir build/tsan --output-on-failure -R '^test_(threads|interface)$'
}

stage_clang() {
  if ! command -v clang >/dev/null; then
    skip "the build with Clang: there is no clang"
    return 0
  fi
  local cuda
  mapfile -t cuda < <(options_for_cuda)
  cmake -S . -B build/clang -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Release \
        -DONEPASS_WERROR=ON -DONEPASS_PYTHON="$python" "${cuda[@]}" >build/clang.log || {
    cat build/clang.log
    return 1
  }
  cmake --build build/clang -j"$jobs" && ctest --test-dir build/clang -j"$jobs" \
    --output-on-failure -L '^c$' && build/clang/cli/onepass check --quick --device cpu
}

has_headers() { # python
  "$1" -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# The package in build/python-package, for any Python: its binding has the stable ABI.
build_python_package() { # python
  local cuda
  if ! has_headers "$1" && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get install -y --no-install-recommends python3-dev >/dev/null 2>&1
  fi
  mapfile -t cuda < <(options_for_cuda | sed 's/^-D//')
  SKBUILD_CMAKE_DEFINE=$(IFS=';' && echo "ONEPASS_WERROR=ON;${cuda[*]}") \
    CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$1" -m pip install --quiet --disable-pip-version-check \
    --no-build-isolation --no-deps --target build/python-package .
}


# The judge is Python on PyTorch's public interface: with the older one, an honest candidate and some cheats.
# Some verdicts hang on the clock, and a machine may be busy with something else for a moment: what failed is
# tried once more, by itself.
test_judge() { # version python
  local chosen=()
  [ "$1" = current ] || chosen=(-k "honest or parts or precision or fork")
  rm -rf "build/judge-$1.out.cache"
  run_pytest "$2" "build/judge-$1.out" tests/judge "${chosen[@]}" && return
  echo "-- once more, what failed"
  run_pytest "$2" "build/judge-$1.out" tests/judge "${chosen[@]}" --last-failed --last-failed-no-failures none
}

run_pytest() { # python output argument...
  local python=$1 output=$2 status
  shift 2
  PYTHONPATH=build/python-package PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -rs \
    -o cache_dir="$PWD/$output.cache" "$@" >"$output" 2>&1
  status=$?
  "$python" -c 'import torch; print("-- PyTorch", torch.__version__)'
  cat "$output"
  grep '^SKIPPED ' "$output" >>"$skips"
  return "$status"
}

# With both versions of PyTorch side by side, and in several processes each where there are processors for them; then
# the judge, one after the other, as it looks at the clock.
stage_python() {
  local status=0 version share shares
  local -A python_of=()
  local running=()
  rm -rf build/python-package
  for version in current 2.0.1; do
    if ! python_of[$version]=$(scripts/find_torch.sh "$version" 2>"build/torch-$version.reason"); then
      skip "the PyTorch package with PyTorch ($version): $(cat "build/torch-$version.reason")"
      unset "python_of[$version]"
      [ "${CI:-}" != true ] || status=1
    elif [ ! -d build/python-package ]; then
      build_python_package "${python_of[$version]}" || return 1
    fi
  done
  shares=$((${#python_of[@]} ? jobs / ${#python_of[@]} : 1))
  [ "$shares" -ge 1 ] || shares=1
  for version in "${!python_of[@]}"; do
    for ((share = 1; share <= shares; share++)); do
      ONEPASS_TEST_SHARE=$share/$shares OMP_NUM_THREADS=2 \
        run_pytest "${python_of[$version]}" "build/torch-$version-$share.out" tests/python &
      running+=($!)
    done
  done
  for share in "${running[@]}"; do wait "$share" || status=1; done
  for version in "${!python_of[@]}"; do
    test_judge "$version" "${python_of[$version]}" || status=1
  done
  if command -v ruff >/dev/null; then
    ruff check . || status=1
  else
    skip "ruff on the Python sources: there is no ruff"
  fi
  return "$status"
}

stage_cuda() {
  local status
  scripts/sanitize_cuda.sh | tee build/sanitize_cuda.out
  status=${PIPESTATUS[0]}
  grep '^skip: ' build/sanitize_cuda.out >>"$skips"
  [ "$status" = 0 ] || [ "$status" = 77 ]
}

stage_emulated() {
  if ! command -v g++ >/dev/null; then
    skip "kernels on an emulated GPU: there is no g++"
    return 0
  fi
  cmake --preset emulated >build/emulated.log 2>&1
  if grep -q 'needs the CUDA backend' build/emulated.log; then
    skip "kernels on an emulated GPU: there is no nvcc"
    return 0
  fi
  configure_and_build emulated || return 1
  ctest --test-dir build/emulated --output-on-failure -j"$jobs" -L emulated
}

stage_valgrind() {
  if ! command -v valgrind >/dev/null; then
    skip "valgrind: there is none"
    return 0
  fi
  # One thread, because libgomp keeps its threads until the end of the process and their stacks are
  # then "possibly lost"; with one it starts none.
  OMP_NUM_THREADS=1 valgrind --leak-check=full --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=9 --quiet build/release/cli/onepass check --quick --threads 1 \
    --device cpu
}

stage_fuzz() {
  local status=0
  scripts/fuzz.sh | tee build/fuzz.out
  status=${PIPESTATUS[0]}
  if [ "$status" = 77 ]; then
    grep '^skip: ' build/fuzz.out >>"$skips"
    echo "the standalone driver instead:"
    if [ ! -x build/asan/tests/fuzz_plan_standalone ]; then
      build_asan || return 1
    fi
    build/asan/tests/fuzz_plan_standalone 1000000 "$RANDOM"
    status=$?
  fi
  return "$status"
}

run_stage() {
  local name=$1 start=$SECONDS
  printf '\n==== %s ====\n' "$name"
  if "stage_$name"; then
    results+=("passed  $name ($((SECONDS - start)) s)")
  else
    results+=("FAILED  $name ($((SECONDS - start)) s)")
    failed=1
  fi
}

mkdir -p build
scripts/setup.sh test || exit 1
if ! python=$(scripts/find_python.sh 2>build/python.log); then
  python=$(command -v python3 || true)
  if [ "${CI:-}" = true ]; then
    echo "the Python tests cannot be run: $(cat build/python.log)" >&2
    exit 1
  fi
  skip "the Python tests: $(cat build/python.log)"
fi

stages=("$@")
[ $# -eq 0 ] && stages=(format release asan tsan clang python cuda emulated valgrind fuzz)
for name in "${stages[@]}"; do
  if ! declare -F "stage_$name" >/dev/null; then
    echo "unknown stage '$name'; expected format, release, asan, tsan, clang, python, cuda, emulated, valgrind or fuzz" >&2
    exit 2
  fi
done
for name in "${stages[@]}"; do run_stage "$name"; done

printf '\n==== summary ====\n'
printf '%s\n' "${results[@]}"
if [ -s "$skips" ]; then
  printf '\nskipped:\n'
  sort -u "$skips" | sed 's/^skip: /  /; s/^SKIPPED/  pytest:/'
fi
exit "$failed"

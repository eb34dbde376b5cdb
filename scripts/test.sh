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
# They run side by side, as many at a time as there are processors for; only the judge, which looks at the clock, has the
# machine to itself, at the end. What a stage prints is shown when it ends, and is in build/stages while it runs.
#
# The release build compiles the CUDA kernels, where there is an nvcc; asan, clang and python take them
# from it. What needs a tool or a GPU that is not here is skipped and listed with its reason at the end.
# With CI=true a missing Python, pytest, hypothesis or PyTorch is a failure instead.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

jobs=$(nproc)
lanes=$((jobs / 2 + 1)) # stages at a time: each has moments when it keeps but one processor busy
records=build/stages    # of each stage its output and its result
skips=$records/skips

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

configure() { # preset [option...]
  local preset=$1
  shift
  cmake --preset "$preset" -DONEPASS_PYTHON="$python" "$@" >"build/$preset.log" || {
    cat "build/$preset.log"
    return 1
  }
}

build() { # folder [target...]
  local folder=$1
  shift
  cmake --build "$folder" -j"$jobs" ${@:+--target "$@"}
}

has_gpu() { compgen -G '/dev/nvidia*' >/dev/null || [ -e /dev/dxg ]; }

# One stage at a time has the GPU. Within a stage there are as many programs as processors; of several stages' programs
# side by side, each waits for its turn, on the GPU and for a processor, ten times as long as it takes by itself.
with_device() { # command...
  if ! has_gpu; then
    "$@"
    return
  fi
  (
    flock 9
    "$@" 9>&-
  ) 9>>build/device.lock
}

run_ctest() { # folder option...
  local folder=$1
  shift
  ctest --test-dir "$folder" --output-on-failure -j"$jobs" "$@"
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

# For asan and for fuzz, which may run at the same time.
build_asan() {
  local cuda
  mapfile -t cuda < <(options_for_cuda)
  (
    flock 9
    configure asan "${cuda[@]}" 9>&- && build build/asan 9>&-
  ) 9>>build/asan.lock
}

run_c_tests() { # folder option...
  local folder=$1 status=0
  run_ctest "$@" || status=1
  collect_skips "$folder"
  return "$status"
}

# The Python tests side by side: the scripts that the build has made for pytest, as CTest would hide what they print.
# Where there are processors for it, each in several shares.
run_python_tests() { # folder
  local status=0 script share shares=$((jobs / 2 > 1 ? jobs / 2 : 1)) log
  local -A process_of=()
  for script in "$1"/tests/*_tests.sh; do
    for ((share = 1; share <= shares; share++)); do
      log=$script.$share.log
      ONEPASS_TEST_SHARE=$share/$shares sh "$script" >"$log" 2>&1 &
      process_of[$log]=$!
    done
  done
  for log in "${!process_of[@]}"; do
    wait "${process_of[$log]}"
    [[ $? = 0 || $? = 77 ]] || status=1
    printf '\n-- %s\n' "$(basename "$log" .log)"
    cat "$log"
    grep -hE '^(skip: |SKIPPED )' "$log" >>"$skips"
  done
  return "$status"
}

# All run whatever happens: first those that measure the GPU's memory or want most of it, then those in C, and those in
# Python beside them where there are processors for both.
run_all_tests() { # folder
  local status=0 beside='' output=$1/python-tests.out
  run_c_tests "$1" -L '^alone$' || status=1
  if [ "$jobs" -ge 8 ]; then
    run_python_tests "$1" >"$output" 2>&1 &
    beside=$!
  fi
  run_c_tests "$1" -LE 'python|alone' || status=1
  if [ -n "$beside" ]; then
    wait "$beside" || status=1
    cat "$output"
  else
    run_python_tests "$1" || status=1
  fi
  return "$status"
}

stage_format() {
  if ! command -v clang-format >/dev/null; then
    skip "the format of the sources: there is no clang-format"
    return 0
  fi
  scripts/sources.sh | xargs clang-format --dry-run -Werror
}

stage_release() {
  local status=0
  configure release && build build/release || status=1
  touch "$records/release.built"
  [ "$status" = 0 ] || return 1
  with_device run_all_tests build/release || status=1
  return "$status"
}

stage_asan() { build_asan && with_device run_all_tests build/asan; }

stage_tsan() {
  # POSIX threads: ThreadSanitizer does not see what libgomp's own barriers order.
  configure tsan -DONEPASS_CLI=OFF -DONEPASS_EXAMPLES=OFF && build build/tsan test_threads test_interface || return 1
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
  build build/clang && with_device run_c_tests build/clang -L '^c$' -LE alone &&
    build/clang/cli/onepass check --quick --device cpu
}

has_headers() { # python
  "$1" -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null
}

# The library of the release build, brought up to date, or else none: pip then builds one.
options_for_package() {
  local library=$PWD/build/release/libonepass.a
  if [ -f "$library" ] && build build/release onepass_static >build/python-library.log; then
    echo "ONEPASS_PREBUILT=$library"
  else
    options_for_cuda | sed 's/^-D//'
  fi
}

build_python_package() { # version python
  local version=$1 python=$2 options
  if ! has_headers "$python" && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get install -y --no-install-recommends python3-dev >/dev/null 2>&1
  fi
  mapfile -t options < <(options_for_package)
  rm -rf build/wheel # whose cache may know another choice
  SKBUILD_CMAKE_DEFINE=$(IFS=';' && echo "ONEPASS_WERROR=ON;${options[*]}") \
    CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$python" -m pip install --quiet --disable-pip-version-check \
    --no-build-isolation --no-deps --target "build/python-package-$version" .
}

# What the other Python has built, if there is one: a binding, with its stable ABI, is for any of them.
package_for() { # version
  local package chosen=build/python-package-$1
  for package in build/python-package-*; do
    [ "$package" = "build/python-package-$1" ] || chosen=$package
  done
  echo "$chosen"
}

# The judge is Python on PyTorch's public interface: with the older one, an honest candidate and some cheats. On a machine
# with a GPU and processors enough, those of its tests that want the one are beside those that want two of the others.
# Some verdicts hang on the clock, and a machine may be busy with something else for a moment: what failed is
# tried once more, by itself.
test_judge() { # version python
  local version=$1 python=$2 some='' status=0 chosen output outputs=() again=()
  local -A process_of=()
  [ "$version" = current ] || some='honest or parts or precision or fork'
  while read -r chosen; do
    output=build/judge-$version-$((${#outputs[@]} + 1)).out
    rm -rf "$output.cache"
    OMP_NUM_THREADS=2 run_pytest "$version" "$python" "$output" tests/judge -k "$chosen" >"$output.shown" &
    outputs+=("$output")
    process_of[$output]=$!
  done < <(judge_choices "$some")
  for output in "${outputs[@]}"; do
    wait "${process_of[$output]}" || again+=("$output")
    cat "$output.shown"
  done
  for output in "${again[@]}"; do
    echo "-- once more, what failed"
    run_pytest "$version" "$python" "$output" tests/judge --last-failed --last-failed-no-failures none || status=1
  done
  return "$status"
}

# What -k chooses for each process. No more of them: several that look at the clock disturb each other, and then take all
# the longer.
judge_choices() { # what -k chooses from all
  if [ "$jobs" -lt 8 ] || ! has_gpu; then
    echo "$1"
    return
  fi
  echo "${1:+($1) and }cuda"
  echo "${1:+($1) and }not cuda"
}

run_pytest() { # version python output argument...
  local python=$2 output=$3 package status
  package=$(package_for "$1")
  shift 3
  PYTHONPATH=$package PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -rs \
    -o cache_dir="$PWD/$output.cache" "$@" >"$output" 2>&1
  status=$?
  "$python" -c 'import sys, torch; print("-- PyTorch", torch.__version__, "with", *sys.argv[1:])' "$package"
  cat "$output"
  grep '^SKIPPED ' "$output" >>"$skips"
  return "$status"
}

# With each Python side by side, and in several processes each where there are processors for them.
test_package() { # version=python...
  local status=0 pair share shares=$((jobs / $#)) running=()
  [ "$shares" -ge 1 ] || shares=1
  for pair in "$@"; do
    for ((share = 1; share <= shares; share++)); do
      ONEPASS_TEST_SHARE=$share/$shares OMP_NUM_THREADS=2 \
        run_pytest "${pair%%=*}" "${pair#*=}" "build/torch-${pair%%=*}-$share.out" tests/python &
      running+=($!)
    done
  done
  for share in "${running[@]}"; do wait "$share" || status=1; done
  return "$status"
}

stage_python() {
  local status=0 version pythons=() found ruff
  rm -rf build/python-package*
  for version in current 2.0.1; do
    if ! found=$(scripts/find_torch.sh "$version" 2>"build/torch-$version.reason"); then
      skip "the PyTorch package with PyTorch ($version): $(cat "build/torch-$version.reason")"
      [ "${CI:-}" != true ] || status=1
      continue
    fi
    # An old one from elsewhere may be without headers.
    if [ "${#pythons[@]}" = 0 ] || has_headers "$found"; then
      build_python_package "$version" "$found" || return 1
    fi
    pythons+=("$version=$found")
    echo "$found" >"$records/judged-$version" # by the rest of this stage
  done
  [ "${#pythons[@]}" = 0 ] || with_device test_package "${pythons[@]}" || status=1
  if ruff=$(command -v ruff || command -v build/venv/bin/ruff); then
    "$ruff" check . || status=1
  else
    skip "ruff on the Python sources: there is no ruff"
  fi
  return "$status"
}

# The rest of stage python, when nothing else runs: the judge, with one version after the other.
alone_python() {
  local status=0 version
  for version in current 2.0.1; do
    [ -f "$records/judged-$version" ] || continue
    test_judge "$version" "$(cat "$records/judged-$version")" || status=1
  done
  return "$status"
}

stage_cuda() {
  local status
  with_device scripts/sanitize_cuda.sh | tee build/sanitize_cuda.out
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
  configure emulated && build build/emulated emulated_tests || return 1
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
    build_asan || return 1
    build/asan/tests/fuzz_plan_standalone 1000000 "$RANDOM"
    status=$?
  fi
  return "$status"
}

# ---- Stages side by side ------------------------------------------------------------------------------

# Runs a stage, or the part of it that wants the machine to itself, and records how it ended.
run_stage() { # name [alone]
  local name=$1 start=$SECONDS verdict=passed before=passed seconds=0
  "${2:-stage}_$name" || verdict=FAILED
  [ -f "$records/$name.result" ] && read -r before seconds <"$records/$name.result"
  [ "$before" = passed ] || verdict=FAILED
  echo "$verdict $((SECONDS - start + seconds))" >"$records/$name.result"
}

# In a process group of its own, so that it can be ended with all that it has started. Threads that wait sleep: there
# are others that can use their processor.
start_stage() { # name
  set -m
  (set +m && export OMP_WAIT_POLICY=passive && run_stage "$1") </dev/null >"$records/$1.log" 2>&1 &
  set +m
  active[$1]=$!
}

end_running() {
  local name
  for name in "${!active[@]}"; do kill -TERM -- "-${active[$name]}" 2>/dev/null; done
}

# What takes the kernels, the library or the programs of the release build waits until they are there.
can_start() { # name
  [[ $1 =~ ^(format|release|tsan|emulated|fuzz)$ ]] || [[ " ${stages[*]} " != *" release "* ]] ||
    [ -e "$records/release.built" ]
}

show() { # name: its output, now that it has ended
  [ -f "$records/$1.result" ] || echo "FAILED $SECONDS" >"$records/$1.result" # it was killed
  printf '\n==== %s ====\n' "$1"
  cat "$records/$1.log"
}

tell_progress() {
  local line
  line="running: ${!active[*]}${waiting:+; to come: ${waiting[*]}}"
  [ "$line" = "$told" ] || printf -- '-- %d s, %s\n' "$SECONDS" "$line"
  told=$line
}

# The longest first, so that a short one is the last.
run_side_by_side() {
  local name told='' waiting=() left
  for name in format release emulated asan python clang valgrind cuda fuzz tsan; do
    [[ " ${stages[*]} " != *" $name "* ]] || waiting+=("$name")
  done
  while [ $((${#waiting[@]} + ${#active[@]})) -gt 0 ]; do
    left=()
    for name in "${waiting[@]}"; do
      if [ "${#active[@]}" -lt "$lanes" ] && can_start "$name"; then start_stage "$name"; else left+=("$name"); fi
    done
    waiting=("${left[@]}")
    tell_progress
    sleep 1
    for name in "${!active[@]}"; do
      kill -0 "${active[$name]}" 2>/dev/null && continue
      unset "active[$name]"
      show "$name"
    done
  done
}

summarize() {
  local name verdict seconds
  printf '\n==== summary ====\n'
  for name in "${stages[@]}"; do
    read -r verdict seconds <"$records/$name.result"
    printf '%s  %s (%s s)\n' "$verdict" "$name" "$seconds"
    [ "$verdict" = passed ] || failed=1
  done
  printf '        all (%s s)\n' "$SECONDS"
  if [ -s "$skips" ]; then
    printf '\nskipped:\n'
    sort -u "$skips" | sed 's/^skip: /  /; s/^SKIPPED/  pytest:/'
  fi
}

stages=("$@")
[ $# -eq 0 ] && stages=(format release asan tsan clang python cuda emulated valgrind fuzz)
for name in "${stages[@]}"; do
  if ! declare -F "stage_$name" >/dev/null; then
    echo "unknown stage '$name'; expected format, release, asan, tsan, clang, python, cuda, emulated, valgrind or fuzz" >&2
    exit 2
  fi
done

mkdir -p "$records"
rm -f "$records"/*
scripts/setup.sh test || exit 1
if ! python=$(scripts/find_python.sh 2>build/python.log); then
  python=$(command -v python3 || true)
  if [ "${CI:-}" = true ]; then
    echo "the Python tests cannot be run: $(cat build/python.log)" >&2
    exit 1
  fi
  skip "the Python tests: $(cat build/python.log)"
fi

failed=0
declare -A active=()
trap end_running EXIT
trap 'exit 130' INT TERM
if [ "${#stages[@]}" = 1 ]; then
  run_stage "${stages[0]}"
else
  run_side_by_side
fi
for name in "${stages[@]}"; do
  declare -F "alone_$name" >/dev/null || continue
  printf '\n==== %s, alone ====\n' "$name"
  run_stage "$name" alone
done
summarize
exit "$failed"

#!/usr/bin/env bash
# clang-tidy and cppcheck on the sources, where they are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
sources=$(scripts/sources.sh | grep -E '^(src|cli|examples)/.*\.c$')

if command -v clang-tidy >/dev/null && [ -f build/release/compile_commands.json ]; then
  # Kernels are templates that the preprocessor fills in: the other files are what a reader reads.
  # shellcheck disable=SC2046,SC2086 # names to be split
  clang-tidy --quiet -p build/release --warnings-as-errors='*' \
    --checks='-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-macro-parentheses,-bugprone-narrowing-conversions,-bugprone-implicit-widening-of-multiplication-result,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*' \
    $(echo "$sources" | grep -v cpu_kernels.c)
else
  echo "skip: clang-tidy: it is not here, or there is no build yet (make)"
fi
if command -v cppcheck >/dev/null; then
  # shellcheck disable=SC2086
  cppcheck --quiet --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem -Iinclude -Isrc $sources
else
  echo "skip: cppcheck: it is not here"
fi

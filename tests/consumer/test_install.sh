#!/bin/sh
# Installs a build to a temporary prefix, then builds and runs a consumer with CMake (shared and
# static) and with pkg-config.
#
#   test_install.sh BUILD_DIR C_COMPILER EXTRA_C_FLAGS
set -eu
build=$1 cc=$2 flags=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" >"$work/install.log"
test -f "$prefix/include/onepass.h" || { echo "no header in the prefix"; exit 1; }

echo "== CMake: find_package(onepass)"
cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
      -DCMAKE_C_FLAGS="$flags" >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/cmake"
"$work/cmake/consumer_shared"
"$work/cmake/consumer_static"

if ! command -v pkg-config >/dev/null; then
  # The CMake half has passed; the rest is left out, and says so.
  echo "skip: the consumer with pkg-config: there is no pkg-config"
  exit 0
fi
pc=$(find "$prefix" -name onepass.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
libdir=$(dirname "$PKG_CONFIG_PATH")
export PKG_CONFIG_PATH

echo "== pkg-config: version $(pkg-config --modversion onepass)"
# The flags are words to be split.
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 $flags "$here/main.c" -o "$work/by_pkg_config" \
      $(pkg-config --cflags --libs onepass) -lm
LD_LIBRARY_PATH=$libdir "$work/by_pkg_config"
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 $flags "$here/main.c" -o "$work/static_by_pkg_config" \
      $(pkg-config --cflags onepass) "$libdir/libonepass.a" \
      $(pkg-config --static --libs-only-other onepass) -lm
"$work/static_by_pkg_config"

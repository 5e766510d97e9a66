#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to every test: installs packages, checks format and includes, builds
# with warnings as errors and runs the unit, MPI and end-to-end tests. Ends with CTest's summary.
#   scripts/test.sh                 all tests
#   scripts/test.sh --sanitizers    before them, the unit tests with address and undefined-behaviour sanitizers
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizers=
case ${1:-} in
  --sanitizers) sanitizers=yes ;;
  '') ;;
  *) echo "usage: $0 [--sanitizers]" >&2; exit 2 ;;
esac

step() { printf '\n== test.sh, %d s: %s\n' "$SECONDS" "$*"; }
build() {  # preset
  cmake --preset "$1" -DTANDEM_BUILD_TESTS=ON -DTANDEM_WARNINGS_AS_ERRORS=ON
  cmake --build --preset "$1" --parallel "$(nproc)"
}

step "packages"
scripts/install_packages.sh
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

# What takes seconds comes first. (77: no clang-format 14 here; said by the script.)
step "format"
scripts/format.sh --check || (($? == 77))
step "includes"
python3 scripts/check_includes.py

if [[ -n $sanitizers ]]; then
  step "build with sanitizers"
  build cpu-asan
  step "unit tests with sanitizers"
  UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0 \
    ctest --test-dir build/cpu-asan -L unit --output-on-failure --parallel "$(nproc)"
fi

step "build"
build cpu
step "tests"
ctest --test-dir build/cpu --output-on-failure --parallel "$(nproc)"

#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to every test: installs packages, checks format and includes, builds
# with warnings as errors and runs the unit, MPI and end-to-end tests. Where nvcc 13 is found (in PATH or
# /usr/local/cuda), the CUDA backend is built and linked for all targets too, and its tests run, or are shown as
# skipped without a GPU. Ends with CTest's summary.
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
build() {  # preset target [cmake options]
  cmake --preset "$1" -DTANDEM_BUILD_TESTS=ON -DTANDEM_WARNINGS_AS_ERRORS=ON "${@:3}"
  cmake --build --preset "$1" --target "$2" --parallel "$(nproc)"
}
# Prints the compiler of CUDA 13 or later, or says why there is none and fails.
find_nvcc() {
  local nvcc release
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  if [[ ! -x $nvcc ]]; then
    echo "SKIPPED: no nvcc in PATH or /usr/local/cuda/bin; the CUDA backend was not compiled" >&2
    return 1
  fi
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
  if ((${release:-0} < 13)); then
    echo "SKIPPED: $nvcc is of CUDA ${release:-?}, 13 is needed; the CUDA backend was not compiled" >&2
    return 1
  fi
  echo "$nvcc"
}
has_nccl() {  # nvcc
  c++ -E -x c++ -I "$(dirname "$1")/../include" -include nccl.h /dev/null >/dev/null 2>&1
}

step "packages"
scripts/install_packages.sh
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
  # Most objects of the CUDA build are those of the CPU build, made in another folder.
  export CCACHE_NOHASHDIR=1
fi

# What takes seconds comes first. (77: no clang-format 14 here; said by the script.)
step "format"
scripts/format.sh --check || (($? == 77))
step "includes"
python3 scripts/check_includes.py

if [[ -n $sanitizers ]]; then
  step "build with sanitizers"
  build cpu-asan unit_tests
  step "unit tests with sanitizers"
  UBSAN_OPTIONS=print_stacktrace=1 LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp:print_suppressions=0 \
    ctest --test-dir build/cpu-asan -L unit --output-on-failure --parallel "$(nproc)"
fi

step "build"
build cpu all
step "build with CUDA"
if nvcc=$(find_nvcc); then
  nccl=ON
  if ! has_nccl "$nvcc"; then
    nccl=OFF
    echo "no nccl.h here: collectives of the CUDA backend through host memory"
  fi
  CUDACXX=$nvcc build cuda-check all -DTANDEM_WITH_NCCL=$nccl
  step "tests with CUDA"
  ctest --test-dir build/cuda-check -L cuda --output-on-failure
fi
step "tests"
ctest --test-dir build/cpu --output-on-failure --parallel "$(nproc)"

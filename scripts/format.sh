#!/usr/bin/env bash
# Formats every C++ file of the tree with clang-format 14, whose output other versions change;
# --check changes nothing, prints what differs and exits 1. Exits 77 (skipped) without version 14.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=
for candidate in clang-format-14 clang-format; do
  if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q 'version 14\.'; then
    tool=$candidate
    break
  fi
done
if [[ -z $tool ]]; then
  echo "format: SKIPPED, clang-format 14 is not here" >&2
  exit 77
fi
mode=(-i)
case ${1:-} in
  --check) mode=(--dry-run --Werror) ;;
  '') ;;
  *) echo "usage: $0 [--check]" >&2; exit 2 ;;
esac
find src kernels tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort |
  xargs -n 20 -P "$(nproc)" "$tool" "${mode[@]}"

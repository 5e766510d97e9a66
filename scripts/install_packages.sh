#!/usr/bin/env bash
# Installs what building and testing Tandem needs, from the distribution alone (Debian 12 and 13,
# Ubuntu 22.04 and 24.04). Calls apt-get only when something is missing; works as root and with sudo.
#   scripts/install_packages.sh          install what is missing
#   scripts/install_packages.sh --list   print the required packages, one a line
set -euo pipefail

required=(
  g++ cmake ninja-build pkg-config                    # build tools
  libopenmpi-dev openmpi-bin                          # MPI
  libhdf5-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev
  libpcre2-dev libicu-dev libhwy-dev libxxhash-dev libssl-dev
  libgtest-dev libgmock-dev libbenchmark-dev          # tests and benchmarks
  python3 python3-h5py python3-numpy python3-matplotlib  # checks; result files read as a user would
)
# Not every distribution has these; without them only the format check (skipped visibly) and speed
# of a second build are lost.
optional=(clang-format-14 ccache)

if [[ ${1:-} == --list ]]; then
  printf '%s\n' "${required[@]}"
  exit 0
elif (($# > 0)); then
  echo "usage: $0 [--list]" >&2
  exit 2
fi

is_installed() { [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == "install ok installed" ]]; }

missing_of() {
  local package
  for package in "$@"; do
    is_installed "$package" || echo "$package"
  done
}

if ! command -v dpkg-query >/dev/null; then
  echo "install_packages: this is neither Debian nor Ubuntu; install the equivalents of:" >&2
  echo "  ${required[*]}" >&2
  exit 1
fi
mapfile -t missing < <(missing_of "${required[@]}")
mapfile -t missing_optional < <(missing_of "${optional[@]}")
if ((${#missing[@]} == 0 && ${#missing_optional[@]} == 0)); then
  exit 0
fi

privilege=()
if ((EUID != 0)); then
  if command -v sudo >/dev/null; then
    privilege=(sudo)
  elif ((${#missing[@]} > 0)); then
    echo "install_packages: not root and no sudo; ask an administrator for:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  else
    exit 0
  fi
fi
apt() { "${privilege[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 "$@"; }

if ((${#missing[@]} == 0)); then
  echo "install_packages: optional and not installed: ${missing_optional[*]}"
else
  echo "install_packages: installing ${missing[*]}"
fi
# Once more after a pause: mirrors refuse now and then. Old lists may still do, so installing decides.
apt update || { sleep 5; apt update; } || echo "install_packages: apt-get update failed" >&2
if ((${#missing[@]} > 0)); then
  apt install -y --no-install-recommends "${missing[@]}"
fi
for package in "${missing_optional[@]}"; do
  apt install -y --no-install-recommends "$package" ||
    echo "install_packages: no package $package here; going on without"
done

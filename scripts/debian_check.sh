#!/usr/bin/env bash
# Builds the committed tree in a plain Debian made by debootstrap, where nothing is installed but what
# scripts/install_packages.sh asks for, and runs the unit tests there. With --arch arm64 on another
# architecture the tree is cross-compiled against unpacked arm64 packages and the tests run under
# qemu-user: emulating the compiler as well would take ten times as long.
#   scripts/debian_check.sh [--arch amd64|arm64] [--suite bookworm] [--dir DIR] [--jobs N]
#                           [--targets "base_test kernels_test …"] [--mirror URL]
# Needs root and the packages debootstrap and git. DIR (default: a folder under /var/tmp) is kept with its
# packages for the next time; remove it by hand. Proxy and certificates of apt are those of this machine.
set -euo pipefail

native=$(dpkg --print-architecture)
arch=$native suite=bookworm jobs=$(nproc) targets=() mirror=http://deb.debian.org/debian dir=
while (($# > 0)); do
  case $1 in
    --arch) arch=$2 ;;
    --suite) suite=$2 ;;
    --dir) dir=$2 ;;
    --jobs) jobs=$2 ;;
    --targets) read -ra targets <<<"$2" ;;
    --mirror) mirror=$2 ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift 2
done
dir=${dir:-/var/tmp/tandem-debian-check/$suite-$arch}
source_dir=$(cd "$(dirname "$0")/.." && pwd)
if ((EUID != 0)) || ! command -v debootstrap >/dev/null || ! command -v git >/dev/null; then
  echo "debian_check: needs root and the packages debootstrap and git" >&2
  exit 2
elif [[ $arch != "$native" && $arch != arm64 ]]; then
  echo "debian_check: on $native, --arch may be $native or arm64" >&2
  exit 2
fi

say() { echo "== debian_check $suite $arch: $*"; }
inside() {
  chroot "$dir" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"
}

if [[ ! -e $dir/.debootstrap-complete ]]; then
  say "debootstrap into $dir"
  mkdir -p "$dir"
  debootstrap --variant=minbase "$suite" "$dir" "$mirror"
  touch "$dir/.debootstrap-complete"
fi
cp /etc/resolv.conf /etc/hosts "$dir/etc/"
{ grep -lsiE 'proxy|https::|cainfo' /etc/apt/apt.conf.d/* || true; } | xargs -r cp -t "$dir/etc/apt/apt.conf.d/"
mkdir -p "$dir/etc/ssl/certs"
[[ ! -e /etc/ssl/certs/ca-certificates.crt ]] || cp /etc/ssl/certs/ca-certificates.crt "$dir/etc/ssl/certs/"

# MPI and the tests need /proc, /dev and shared memory; never left mounted.
mounted=()
unmount() {
  local i
  for ((i = ${#mounted[@]} - 1; i >= 0; --i)); do umount -l "${mounted[i]}"; done
}
trap unmount EXIT
mount_at() { mount "${@:2}" "$dir/$1" && mounted+=("$dir/$1"); }
mount_at proc -t proc proc
mount_at dev --rbind --make-rslave /dev

say "packages"
rm -rf "$dir/tandem" && mkdir "$dir/tandem"
git -C "$source_dir" archive HEAD | tar -x -C "$dir/tandem"
inside /tandem/scripts/install_packages.sh

configure=(cmake --preset cpu)
if [[ $arch != "$native" ]]; then
  inside apt-get install -q -y --no-install-recommends g++-aarch64-linux-gnu qemu-user-static
  sysroot=/sysroot-$arch
  if [[ ! -e $dir$sysroot/.complete ]]; then
    say "arm64 packages into $sysroot"
    # An empty package state makes apt fetch every dependency; nothing of them is run or configured.
    mkdir -p "$dir$sysroot"/{usr/{bin,lib,sbin},state/lists/partial,cache/archives/partial}
    for folder in bin lib sbin; do ln -sfn "usr/$folder" "$dir$sysroot/$folder"; done
    : >"$dir$sysroot/state/status"
    foreign=(-o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State="$sysroot/state"
      -o Dir::State::status="$sysroot/state/status" -o Dir::Cache="$sysroot/cache" -o APT::Sandbox::User=root)
    inside apt-get "${foreign[@]}" -q update
    mapfile -t packages < <("$source_dir/scripts/install_packages.sh" --list | grep -E '^lib|^nlohmann')
    inside apt-get "${foreign[@]}" -q -y --no-install-recommends --download-only install \
      libc6-dev libstdc++6 libgomp1 "${packages[@]}"
    for deb in "$dir$sysroot"/cache/archives/*.deb; do
      dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$dir$sysroot"
    done
    rm -rf "$dir$sysroot/cache"
    touch "$dir$sysroot/.complete"
  fi
  configure=(env TANDEM_SYSROOT="$sysroot" cmake --preset cpu --toolchain scripts/cmake/aarch64-linux-gnu.cmake)
fi

say "configure and build"
inside sh -c 'cd /tandem && exec "$@"' sh "${configure[@]}"
inside cmake --build /tandem/build/cpu -j "$jobs" ${targets:+--target "${targets[@]}"}
say "unit tests on $(inside dpkg --print-architecture)${sysroot:+, emulated $arch}"
inside ctest --test-dir /tandem/build/cpu -L unit --output-on-failure ${targets:+--tests-regex "$(
  printf '^unit\\.(%s)$' "$(IFS='|'; echo "${targets[*]%_test}")")"}

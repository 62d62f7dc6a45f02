#!/usr/bin/env bash
# Installs what one of the make targets needs and this machine lacks, and says what it installs.
#
#   scripts/setup.sh demo|test|bench|fuzz|peer     install what is missing
#   scripts/setup.sh --check GROUP                 only name what is missing; exit 1 if anything is
#
# Written for Debian 12. Each need is probed by what it gives (a header, a library, a command), not by
# its package's name, so that a tool installed in another way counts. Nothing is removed or upgraded.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# bindgen loads libclang at build time, and libclang wants its own compiler headers beside it.
have_libclang() {
	local d
	for d in ${LIBCLANG_PATH:-} /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu; do
		if compgen -G "$d/libclang*.so*" >/dev/null; then
			compgen -G "/usr/lib/llvm-*/lib/clang/*/include/stddef.h" >/dev/null && return 0
			compgen -G "/usr/lib/clang/*/include/stddef.h" >/dev/null && return 0
		fi
	done
	return 1
}

missing=()
want() { # PACKAGE PROBE...: note the Debian package when the probe fails
	local package=$1
	shift
	if ! "$@" >/dev/null 2>&1 && [[ " ${missing[*]} " != *" $package "* ]]; then
		missing+=("$package")
	fi
}

needs_build() {
	want gcc have cc
	want libc6-dev test -e /usr/include/stdio.h
	want pkg-config have pkg-config
	want libdpdk-dev pkg-config --exists libdpdk
	want libclang-dev have_libclang
}
needs_test() {
	needs_build
	want python3 have python3 # the independent ICRC checker
	want tshark have tshark   # the independent decoder
	want util-linux have setpriv
	want iproute2 have ip # links and namespaces
	want nftables have nft # losses and counters of `spraywire testbed`
	want iputils-ping have ping
	want git have git
	# Stock programs that run on the verbs library; librdmacm's must be refused.
	want ibverbs-utils have ibv_devinfo
	want perftest have ib_send_bw
	want rdmacm-utils have rping
	want openmpi-bin have mpirun # starts the ranks of a collective
	needs_peer # the guest that the interoperability tests run against
}
needs_bench() {
	needs_build
	want libibverbs-dev test -e /usr/include/infiniband/verbs.h # the structures of the verbs library
	want dpdk-dev have dpdk-testpmd # the peer printed beside our figures
	want valgrind have valgrind     # instruction counts
	want libisal-dev test -e /usr/include/isa-l/erasure_code.h # the erasure code that ours is compared with
}
needs_peer() {
	want qemu-system-x86 have qemu-system-x86_64
	want cpio have cpio
	want kmod have depmod
	want gcc have gcc
	want libc6-dev test -e /usr/include/stdio.h
	want binutils have objdump
	want libibverbs-dev test -e /usr/include/infiniband/verbs.h
	want python3 have python3
	want iproute2 have ip
	want ethtool have ethtool
	want tcpdump have tcpdump
}

install_missing() {
	[ ${#missing[@]} -gt 0 ] || return 0
	local line="apt-get install -y --no-install-recommends ${missing[*]}" as_root=()
	if [ ! -e /etc/debian_version ] || ! have apt-get; then
		die "missing: ${missing[*]} (Debian's names). This is not Debian: install their counterparts with this \
system's own package manager, then try again."
	fi
	if [ "$(id -u)" -ne 0 ]; then
		have sudo || die "missing: ${missing[*]}. Neither root nor sudo here; as root, run: $line"
		if ! sudo -n true 2>/dev/null && { [ -n "${CI:-}" ] || [ ! -t 0 ]; }; then
			die "missing: ${missing[*]}. sudo wants a password and there is no terminal; as root, run: $line"
		fi
		as_root=(sudo)
	fi
	say "installing with apt: ${missing[*]}"
	[[ " ${missing[*]} " != *" libdpdk-dev "* ]] || say "(DPDK comes with its drivers: about 200 small packages)"
	local log
	log=$(mktemp)
	# A frontend that asks nothing: tshark's package otherwise stops for a question.
	local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0
		-o DPkg::Lock::Timeout=300)
	if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
		tail -n 25 "$log" >&2
		rm -f "$log"
		die "apt failed (its last lines stand above); by hand, as root: apt-get update && $line"
	fi
	rm -f "$log"
	say "installed: ${missing[*]}"
}

# The Rust release that the workspace asks for, and the parts of it that a target needs.
check_rust() {
	have cargo || die "no cargo on PATH: install Rust first (rustup.rs has the one-line installer)"
	local want_version have_version
	want_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
	have_version=$(rustc --version | awk '{print $2}')
	[ "$(printf '%s\n%s\n' "$want_version" "${have_version%%-*}" | sort -V | head -n 1)" = "$want_version" ] ||
		die "Rust $want_version or later is needed and this is $have_version: rustup update stable"
}
check_components() {
	local c lacking=()
	cargo fmt --version >/dev/null 2>&1 || lacking+=(rustfmt)
	cargo clippy --version >/dev/null 2>&1 || lacking+=(clippy)
	[ ${#lacking[@]} -gt 0 ] || return 0
	if [ -n "$only_check" ] || ! have rustup; then
		die "missing from this Rust toolchain: ${lacking[*]} (with rustup: rustup component add ${lacking[*]})"
	fi
	for c in "${lacking[@]}"; do
		say "installing with rustup: $c"
		rustup -q component add "$c"
	done
}
# libFuzzer's instrumentation exists in nightly compilers only. Without one there is nothing to install
# here: the seeded mutations of the stable test suite remain.
check_fuzz() {
	if ! cargo +nightly --version >/dev/null 2>&1; then
		say "no nightly Rust, so no libFuzzer (to have it: rustup toolchain install nightly)"
		return 0
	fi
	want g++ have c++
	want python3 have python3 # makes the seeds
	have cargo-fuzz && return 0
	[ -z "$only_check" ] || die "missing: cargo-fuzz"
	say "installing with cargo: cargo-fuzz"
	cargo install --quiet --locked cargo-fuzz
}

only_check=
if [ "${1:-}" = --check ]; then
	only_check=yes
	shift
fi
group=${1:-}
case $group in
demo) needs_build ;;
test) needs_test ;;
bench) needs_bench ;;
fuzz) ;;
peer) needs_peer ;;
*) die "usage: scripts/setup.sh [--check] demo|test|bench|fuzz|peer" ;;
esac
[ "$group" = peer ] || check_rust
[ "$group" != test ] || check_components
[ "$group" != fuzz ] || check_fuzz
if [ -n "$only_check" ] && [ ${#missing[@]} -gt 0 ]; then
	die "missing for $group: ${missing[*]}"
fi
install_missing
say "nothing is missing for $group"

#!/usr/bin/env bash
# Everything that `make test` checks, quickest first: format, lints, documentation examples, then the
# tests of every crate (the test of the tree itself and the seeded fuzzing are among them).
# CI=true: dependency versions must be those of Cargo.lock, and the output is short.
set -euo pipefail
cd "$(dirname "$0")/.."

flags=()
quiet=()
if [ -n "${CI:-}" ]; then
	flags=(--locked)
	quiet=(--quiet)
	export CARGO_TERM_COLOR=never
fi
step() { printf '== %s\n' "$*"; }

step "format"
cargo fmt --all --check
# The fuzz targets are a workspace of their own: cargo-fuzz builds them with nightly.
[ ! -e roce-proto/fuzz/Cargo.toml ] || cargo fmt --manifest-path roce-proto/fuzz/Cargo.toml --check

step "lints"
cargo clippy "${flags[@]}" "${quiet[@]}" --workspace --all-targets -- -D warnings

# `spraywire inspect` alone is built where there is no DPDK.
step "the build without DPDK"
cargo clippy "${flags[@]}" "${quiet[@]}" -p spraywire --no-default-features --all-targets -- -D warnings

step "documentation examples"
cargo test "${flags[@]}" --quiet --workspace --doc

step "tests"
# All binaries are run even when one fails, and the sum closes the output.
# Read line by line, so that a log shows each as soon as it is there.
count() {
	local line passed=0 failed=0 ignored=0 binaries=0
	local result='^test result: .* ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored;'
	while IFS= read -r line || [ -n "$line" ]; do
		printf '%s\n' "$line"
		if [[ $line =~ $result ]]; then
			passed=$((passed + BASH_REMATCH[1]))
			failed=$((failed + BASH_REMATCH[2]))
			ignored=$((ignored + BASH_REMATCH[3]))
			binaries=$((binaries + 1))
		fi
	done
	echo "total: $passed passed; $failed failed; $ignored ignored; in $binaries test binaries"
}
cargo test "${flags[@]}" "${quiet[@]}" --workspace --tests --no-fail-fast 2>&1 | count

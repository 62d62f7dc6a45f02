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
cargo test "${flags[@]}" "${quiet[@]}" --workspace --tests --no-fail-fast 2>&1 | awk '
	{ print; fflush() }
	/^test result: / {
		for (i = 2; i <= NF; i++) {
			if ($i ~ /^passed/) passed += $(i - 1)
			if ($i ~ /^failed/) failed += $(i - 1)
			if ($i ~ /^ignored/) ignored += $(i - 1)
		}
		binaries++
	}
	END { printf "total: %d passed; %d failed; %d ignored; in %d test binaries\n", passed, failed, ignored, binaries }'

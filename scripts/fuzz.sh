#!/usr/bin/env bash
# Fuzzes the whole receive parser, and the engine of the reliable service by sequences of calls, for half of SECONDS (default 300)
# each: under libFuzzer where there is a nightly compiler with cargo-fuzz. Otherwise the parser by the seeded mutations of the stable
# test, run for as long; the stable test of sequences is part of `make test`.
set -euo pipefail
seconds=${1:-300}
cd "$(dirname "$0")/../roce-proto"

if cargo +nightly --version >/dev/null 2>&1 && command -v cargo-fuzz >/dev/null 2>&1; then
	python3 fuzz/seeds.py # every captured frame is a seed
	for target in receive operations; do
		echo "libFuzzer, target $target, for $((seconds / 2)) s; a crash leaves its input in roce-proto/fuzz/artifacts"
		# An input of the second has some bytes for each of several hundred calls.
		cargo +nightly fuzz run "$target" -- -max_total_time="$((seconds / 2))" -max_len=8192 -print_final_stats=1
	done
	exit
fi
echo "no nightly compiler with cargo-fuzz here: the seeded mutations instead, for $seconds s"
FUZZ_SMOKE_SECONDS=$seconds exec cargo test --release -p roce-proto --test fuzz_smoke -- --nocapture

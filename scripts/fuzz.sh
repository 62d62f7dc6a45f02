#!/usr/bin/env bash
# Fuzzes the whole receive parser for SECONDS (default 300): under libFuzzer where there is a nightly
# compiler with cargo-fuzz, otherwise by the seeded mutations of the stable test, run for as long.
set -euo pipefail
seconds=${1:-300}
cd "$(dirname "$0")/../roce-proto"

if cargo +nightly --version >/dev/null 2>&1 && command -v cargo-fuzz >/dev/null 2>&1; then
	python3 fuzz/seeds.py # every captured frame is a seed
	echo "libFuzzer, target receive, for $seconds s; a crash leaves its input in roce-proto/fuzz/artifacts"
	exec cargo +nightly fuzz run receive -- -max_total_time="$seconds" -print_final_stats=1
fi
echo "no nightly compiler with cargo-fuzz here: the seeded mutations instead, for $seconds s"
FUZZ_SMOKE_SECONDS=$seconds exec cargo test --release -p roce-proto --test fuzz_smoke -- --nocapture

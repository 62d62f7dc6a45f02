# The commands of this repository. Each installs what it needs and says so: see scripts/setup.sh.

# Arguments for `make bench`, e.g. BENCH_ARGS="headers --runs 15"; none runs every figure.
BENCH_ARGS ?=
# How long `make fuzz` lasts, in seconds.
FUZZ_SECONDS ?= 300
# Arguments for `make demo`.
DEMO_ARGS ?=

# Where cargo builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo test bench fuzz doc fmt

help:
	@echo "make demo    two RoCEv2 endpoints over DPDK exchange traffic; a table of rates and latencies"
	@echo "make test    format, lints, every test: what CI runs"
	@echo "make bench   the figures, interleaved with what they are compared with (BENCH_ARGS=...)"
	@echo "make fuzz    the receive parser and the engine under libFuzzer for FUZZ_SECONDS (now $(FUZZ_SECONDS))"
	@echo "make doc     the API documentation, in $(TARGET)/doc"
	@echo "make fmt     format the Rust sources"

demo:
	@scripts/setup.sh demo
	cargo build --release -p spraywire
	$(TARGET)/release/spraywire demo $(DEMO_ARGS)

test:
	@scripts/setup.sh test
	@scripts/test.sh

bench:
	@scripts/setup.sh bench
	cargo build --release --workspace
	cargo run --release -p spraywire-benches --features isal -- $(BENCH_ARGS)

fuzz:
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

doc:
	@scripts/setup.sh demo
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

fmt:
	cargo fmt --all

#!/bin/sh
# What a packet of a message without a tag costs the engine, in instructions, with protection by parity and in a build without it.
# Fails if they differ by more than half a percent. Needs valgrind.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "valgrind is missing (Debian's package: valgrind)" >&2; exit 2; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# One build has debug information, as the functions that are counted are found by name.
count() {
    cargo build --quiet --release --package roce-proto --example untagged "$@"
    program=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release/examples/untagged
    valgrind --tool=callgrind --callgrind-out-file="$out/counts" --toggle-collect='*in_engine*' --log-file="$out/log" "$program" >"$out/segments"
    sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' "$out/log"
}
with=$(count)
without=$(count --features without-protection)
awk -v with="$with" -v without="$without" -v segments="$(cat "$out/segments")" 'BEGIN {
    if (without < 1 || segments < 1) { print "nothing was counted"; exit 2 }
    more = 100 * (with / without - 1)
    printf "%d segments: %.1f instructions each with the stage, %.1f without, %+.2f %%\n", segments, with / segments, without / segments, more
    exit (more > 0.5 || more < -0.5)
}'

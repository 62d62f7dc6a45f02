#!/usr/bin/env python3
"""Writes every frame of testbed/pcaps as a seed into fuzz/corpus/receive, named by its hash.

Run once before `cargo +nightly fuzz run receive` (in roce-proto); running it again changes nothing.
"""
import hashlib
import pathlib
import struct

here = pathlib.Path(__file__).resolve().parent
corpus = here / "corpus" / "receive"
corpus.mkdir(parents=True, exist_ok=True)
count = 0
for pcap in sorted((here / "../../testbed/pcaps").glob("*.pcap")):
    data = pcap.read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at = 24
    while at + 16 <= len(data):
        length = struct.unpack_from(order + "I", data, at + 8)[0]
        frame = data[at + 16:at + 16 + length]
        (corpus / hashlib.sha1(frame).hexdigest()).write_bytes(frame)
        at += 16 + length
        count += 1
if count == 0:
    raise SystemExit("no frames in testbed/pcaps")
print(f"{count} frames, {sum(1 for _ in corpus.iterdir())} files in {corpus}")

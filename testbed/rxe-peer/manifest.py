#!/usr/bin/env python3
"""Write MANIFEST.md for a folder of captures: manifest.py DIR (used by make-pcaps.sh).

DIR/commands.tsv holds "name, netdev MTU, receiver command, sender command" lines.
"""
import collections, os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))   # icrc_check.py
from icrc_check import packets, parse

MAD = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP",
       0x17: "SIDR_REQ", 0x18: "SIDR_REP"}


def runs(xs):
    """Each value once, in order of appearance."""
    return " ".join(str(x) for x in dict.fromkeys(xs))


def main(d):
    out = ["# Golden Soft-RoCE captures", "",
           "Made by `make-pcaps.sh` from two Linux guests with rdma_rxe; every frame as seen on guest b's tap.",
           "a = 52:54:00:00:00:01, 10.77.0.1, fd77::1; b = 52:54:00:00:00:02, 10.77.0.2, fd77::2.",
           "The receiver/server runs on b, the sender/client on a. All ICRCs were verified with `icrc_check.py`;",
           "`icrc_check.py -v FILE` lists every field. P_Key is 0xffff, TTL/hop limit 64, DF set, UDP checksum 0 and",
           "flow label 0 throughout. IB MTU M (256, 512, ... 4096) needs a netdev MTU of at least M + 80.",
           "@Q stands for the QPN that the receiver printed. Sizes: UD = user payload; RC/UC = bytes after the BTH (extension headers included), pad not counted.", ""]
    total = 0
    for line in open(os.path.join(d, "commands.tsv")):
        name, mtu, srv, cli = line.rstrip("\n").split("\t")
        f = os.path.join(d, name + ".pcap")
        ops, flows, sizes, imms, keys, mads, extra = collections.Counter(), [], [], [], [], [], set()
        n = good = other = 0
        for _, fr in packets(f):
            n += 1
            r = parse(fr)
            if not r:
                other += 1
                continue
            good += r["ok"]
            ops[r["op"]] += 1
            sizes.append(len(r["payload"]))
            who = {"10.77.0.1": "a", "fd77::1": "a", "10.77.0.2": "b", "fd77::2": "b"}
            flows.append(f"{who.get(r['src'], r['src'])}:{r['sport']}"
                         + (f" QP {r['sqpn']:#x}" if "sqpn" in r else "")
                         + f" > {who.get(r['dst'], r['dst'])} QP {r['dqpn']:#x}")
            if "qkey" in r:
                keys.append(f"{r['qkey']:#x}")
            if "imm" in r:
                imms.append(f"{r['imm']:#010x}")
            if r.get("qkey") == 0x80010000 and len(r["payload"]) == 256:
                mads.append(MAD.get(r["payload"][16] << 8 | r["payload"][17], "?"))
            for k in ("se", "tos", "flow", "mig", "bth4"):
                if r.get(k):
                    extra.add(f"{k}={r[k]:#x}")
        total += n
        out += [f"## {name}.pcap", "", f"- netdev MTU {mtu}; b: `{srv}`; a: `{cli}`",
                f"- {n} frames, {good} with right ICRC" + (f", {other} ARP/ND" if other else "") + ": "
                + ", ".join(f"{c} {o}" for o, c in ops.items()) + f"; sizes {runs(sizes)}"]
        fl = list(dict.fromkeys(flows))
        out.append("- flows: " + "; ".join(fl[:12]) + (f"; ... ({len(fl)})" if len(fl) > 12 else ""))
        if keys:
            out.append("- Q_Key " + runs(keys) + (f"; immediate {runs(imms)}" if imms else ""))
        if mads:
            out.append("- CM MADs in order: " + " ".join(mads))
        if extra:
            out.append("- fields not zero: " + ", ".join(sorted(extra)))
        out.append("")
        print(f"{name}: {n} frames, {good} ICRC ok")
    open(os.path.join(d, "MANIFEST.md"), "w").write("\n".join(out))
    print(f"{total} frames in all")


main(sys.argv[1])

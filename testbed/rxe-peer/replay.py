#!/usr/bin/env python3
"""Send the RoCEv2 packets of a capture again, as they are or with one bit turned.

  replay.py [--flip] [-n N] [--to QPN] IFACE FILE.pcap

Sends the first RoCEv2 packet of the capture (of those to the queue pair QPN, if given) N times
out of IFACE.  --flip turns the lowest bit of the last byte before the ICRC, so that nothing but
the ICRC tells.  Needs CAP_NET_RAW.  Python's standard library only.
"""
import argparse, os, socket, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))     # icrc_check.py
from icrc_check import packets, parse


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--flip", action="store_true")
    p.add_argument("-n", type=int, default=1)
    p.add_argument("--to", type=lambda s: int(s, 0))
    p.add_argument("iface")
    p.add_argument("file")
    a = p.parse_args()
    for _, frame in packets(a.file):
        r = parse(frame)
        if r and r["payload"] and not r["trailer"] and (a.to is None or r["dqpn"] == a.to):
            break
    else:
        sys.exit(f"replay: {a.file} has no such RoCEv2 packet with a payload")
    frame = bytearray(frame)
    if a.flip:
        frame[-5] ^= 1
        if parse(bytes(frame))["ok"]:
            sys.exit("replay: the ICRC does not notice")
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind((a.iface, 0))
    for _ in range(a.n):
        s.send(frame)


main()

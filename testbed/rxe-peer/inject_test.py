#!/usr/bin/env python3
"""Inject hand-made RoCEv2 UD packets into a Soft-RoCE guest and tell what it took.

  inject_test.py [-k]        boots a guest in namespace rxeinj, runs all cases,
                             prints a table; exit status 1 on an unexpected result
                             (-k: keep the guest and namespace)
Then the guest echoes packets back, and what it sends is checked too.
Also a library: ud_frame() builds a frame with every field settable, and a correct
ICRC unless told otherwise.  Python's standard library only.
"""
import ipaddress, os, re, socket, struct, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))     # icrc_check.py
from icrc_check import icrc, parse


def csum(b):
    b += b"\0" * (len(b) & 1)
    s = sum(struct.unpack(f">{len(b) // 2}H", b))
    while s >> 16:
        s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff


def ud_frame(dmac, smac, src, dst, dqpn, qkey, payload=b"", imm=None, sqpn=0x123, psn=0, sport=0xc123,
             tos=0, ttl=64, ipid=0, df=1, flow=0, se=0, mig=0, pad=None, tver=0, pkey=0xffff, bth4=0,
             ackreq=0, opcode=None, udp_csum=0, icrc_xor=0, trailer=b"", vlan=None, fix_icrc=None, deth_hi=0):
    s, d = ipaddress.ip_address(src), ipaddress.ip_address(dst)
    pad = -len(payload) % 4 if pad is None else pad
    op = opcode if opcode is not None else (0x64 if imm is None else 0x65)
    b = struct.pack(">BBHII", op, se << 7 | mig << 6 | pad << 4 | tver, pkey,
                    bth4 << 24 | dqpn, ackreq << 31 | psn)
    b += struct.pack(">II", qkey, deth_hi << 24 | sqpn)
    b += b"" if imm is None else struct.pack(">I", imm)
    b += payload + b"\0" * pad
    ulen = 8 + len(b) + 4
    udp = struct.pack(">HHHH", sport, 4791, ulen, 0)
    if s.version == 4:
        h = struct.pack(">BBHHHBBH4s4s", 0x45, tos, 20 + ulen, ipid, df << 14, ttl, 17, 0, s.packed, d.packed)
        ip = h[:10] + struct.pack(">H", csum(h)) + h[12:]
        et, pseudo = 0x0800, s.packed + d.packed + struct.pack(">HH", 17, ulen)
    else:
        ip = struct.pack(">IHBB", 6 << 28 | tos << 20 | flow, ulen, 17, ttl) + s.packed + d.packed
        et, pseudo = 0x86dd, s.packed + d.packed + struct.pack(">II", ulen, 17)
    crc = fix_icrc if fix_icrc is not None else bytes(x ^ y for x, y in zip(
        icrc(ip + udp + b, len(ip)), struct.pack(">I", icrc_xor)))
    if udp_csum == "right":
        udp_csum = csum(pseudo + udp + b + crc)
    p = ip + udp[:6] + struct.pack(">H", udp_csum) + b + crc
    tag = b"" if vlan is None else struct.pack(">HH", 0x8100, vlan)
    m = lambda x: bytes.fromhex(x.replace(":", ""))
    return m(dmac) + m(smac) + tag + struct.pack(">H", et) + p + trailer


def peer(*a, check=True):
    r = subprocess.run([HERE + "/rxe-peer", *a], capture_output=True, text=True)
    if check and r.returncode:
        sys.exit(f"rxe-peer {a}: {r.stdout}{r.stderr}")
    return r.stdout


PROBE = ("cd /sys/class/infiniband/rxe0/ports/1/hw_counters; for f in *; do echo rxe.$f $(cat $f); done; "
         "ibv_devinfo -v | sed -n 's/.*\\(bad_pkey_cntr\\|qkey_viol_cntr\\):\\s*/port.\\1 /p'; "
         "awk '/^(Udp|Ip):/{if(!($1 in h)){h[$1]=$0;next} n=split(h[$1],k,\" \");split($0,v,\" \");"
         "for(i=2;i<=n;i++)print \"snmp.\" substr($1,1,length($1)-1) k[i],v[i]}' /proc/net/snmp; "
         "grep -E '^(Udp6In|Ip6In|Udp6NoPorts)' /proc/net/snmp6 | sed 's/^/snmp./'; "
         "echo LOG; dmesg -c; echo OUT; cat /tmp/{J}.out")


NS, G4, G6, H4, H6 = "rxeinj", "10.78.0.2", "fd78::2", "10.78.0.9", "fd78::9"
GMAC, HMAC = "52:54:00:78:00:02", "02:00:00:78:00:09"


def cases_of(q, qk):
    """(name, frame fields, does the guest deliver it: 1, 0, or None = just report)"""
    P = bytes(range(64))
    v4 = dict(dmac=GMAC, smac=HMAC, src=H4, dst=G4, dqpn=q, qkey=qk, payload=P)
    v6 = dict(v4, src=H6, dst=G6)
    return [
        ("v4 plain", v4, 1), ("v6 plain", v6, 1),
        ("v4 imm", dict(v4, imm=0xcafef00d), 1), ("v6 imm", dict(v6, imm=0xcafef00d), 1),
        ("v4 1 byte (pad 3)", dict(v4, payload=b"\x5a"), 1), ("v4 2 bytes", dict(v4, payload=b"\x5a\xa5"), 1),
        ("v4 3 bytes", dict(v4, payload=b"abc"), 1), ("v4 empty", dict(v4, payload=b""), 1),
        ("v4 1024 bytes", dict(v4, payload=bytes(i & 255 for i in range(1024))), 1),
        ("v6 1024 bytes", dict(v6, payload=bytes(i & 255 for i in range(1024))), 1),
        ("v4 1025 bytes, over IB MTU 1024", dict(v4, payload=bytes(1025)), None),
        ("v4 solicited event", dict(v4, se=1), 1), ("v4 mig=1", dict(v4, mig=1), 1),
        ("v4 FECN+BECN", dict(v4, bth4=0xc0), 1), ("v4 bth4 resv6=0x3f", dict(v4, bth4=0x3f), 1),
        ("v4 ackreq=1", dict(v4, ackreq=1), 1), ("v4 tver=1", dict(v4, tver=1), None),
        ("v4 psn jumps", dict(v4, psn=0xabcdef), 1),
        ("v4 tos=0xff ttl=1 id=77 df=0", dict(v4, tos=0xff, ttl=1, ipid=77, df=0), 1),
        ("v6 tc=0xff flow=0xfffff hop=1", dict(v6, tos=0xff, ttl=1, flow=0xfffff), 1),
        ("v4 source port 1", dict(v4, sport=1), 1), ("v4 source port 4791", dict(v4, sport=4791), 1),
        ("v4 right UDP checksum", dict(v4, udp_csum="right"), 1),
        ("v6 right UDP checksum", dict(v6, udp_csum="right"), 1),
        ("v4 wrong UDP checksum", dict(v4, udp_csum=0x1234), 0),
        ("v4 short frame, Ethernet trailer", dict(v4, payload=b"", trailer=b"\0" * 46), 1),
        ("v4 unknown source IP", dict(v4, src="192.0.2.77"), None),
        ("v4 sender MAC unknown", dict(v4, smac="02:00:00:00:aa:bb"), 1),
        ("v4 pkey 0x7fff (limited)", dict(v4, pkey=0x7fff), None),
        ("v4 WRONG pkey 0x1234", dict(v4, pkey=0x1234), 0),
        ("v4 WRONG qkey", dict(v4, qkey=qk ^ 1), 0), ("v6 WRONG qkey", dict(v6, qkey=qk ^ 1), 0),
        ("v4 WRONG icrc (1 bit)", dict(v4, icrc_xor=1), 0), ("v6 WRONG icrc (1 bit)", dict(v6, icrc_xor=1), 0),
        ("v4 WRONG icrc (zero)", dict(v4, fix_icrc=b"\0" * 4), 0),
        ("v4 WRONG dest QPN", dict(v4, dqpn=q + 5), 0),
        ("v4 RC SEND_ONLY at the UD QP", dict(v4, opcode=0x04), 0),
        ("v4 pad=3 and 3 bytes too many", dict(v4, pad=3, payload=P), None),
        ("v4 802.1Q VLAN 5", dict(v4, vlan=5), None),
        ("v4 dest MAC of another", dict(v4, dmac="02:00:00:00:00:01"), 0),
        ("v4 to the IPv6 GID's QP", v4, 1),
        ("v4 2500 bytes, over the netdev MTU and buffer", dict(v4, payload=bytes(2500)), 0),
        ("v4 plain again", v4, 1), ("v6 plain again", v6, 1),
    ]

def inside():
    """Runs in the namespace: injects every case and prints what became of it."""
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))    # ETH_P_ALL
    s.bind(("ep0", 0))
    fails = 0
    QK = 0x1ee7a11c
    out = peer("bg", "inj", "--until", "READY", "--", f"udtool recv -n 0 -k {QK:#x} -D 8 -B 2048")
    job, q = out.split()[0], int(re.search(r"qpn=0x([0-9a-f]+)", out)[1], 16)
    def probe():
        o = peer("exec", "inj", "--", PROBE.replace("{J}", job))
        c, rest = o.split("LOG\n", 1)
        log, recv = rest.split("OUT\n", 1)
        return dict((l.split()[0], int(l.split()[1], 0)) for l in c.splitlines() if l), log.strip(), \
            [l for l in recv.splitlines() if l.startswith("RECV")]

    c0, _, r0 = probe()
    for name, f, want in cases_of(q, QK):
        s.send(ud_frame(**f))
        time.sleep(0.15)
        c1, log, r1 = probe()
        new = r1[len(r0):]
        ups = " ".join(f"{k}+{c1[k] - c0.get(k, 0)}" for k in c1
                       if c1[k] != c0.get(k, 0) and not re.search(r"Octets|Out|Deliv|InReceives|NoECT|ECT|CE", k))
        note = ""
        if new:
            k = dict(x.split("=", 1) for x in new[0].split()[1:])
            # data= is everything after the GRH; ours must arrive whole
            intact = k["data"] == f["payload"].hex() and int(k["src_qp"], 16) == 0x123 and \
                k["imm"] == ("-" if f.get("imm") is None else f"0x{f['imm']:08x}")
            note = f"status={k['status']} byte_len={k['byte_len']} imm={k['imm']} src_qp={k['src_qp']} flags={k['flags']}" \
                   + ("" if intact else " NOT-AS-SENT")
            if want and (not intact or len(new) != 1):
                fails += 1
                note += " UNEXPECTED"
        if want is not None and bool(new) != bool(want):
            fails += 1
            note += " UNEXPECTED"
        print(f"{'DELIVERED' if new else 'dropped  '} {name:46} {note} | {ups}")
        for l in log.splitlines():
            if "speed is unknown" not in l:      # the probe's own ibv_devinfo
                print(f"{'':12}log: {l}")
        c0, r0 = c1, r1
    fails += echo(s)
    print("inject_test:", "FAILED" if fails else "all as expected")
    return fails


def echo(s, rounds=20):
    """Both ways: the guest's udtool echoes our packets; check what it sends."""
    # We answer no ARP/ND, so the guest needs neighbour entries to answer us.
    peer("exec", "inj", "--", f"for a in {H4} {H6}; do ip neigh replace $a lladdr {HMAC} dev eth0 nud permanent; done")
    out = peer("bg", "inj", "--until", "READY", "--", "udtool echo -q")
    q, bad, rtt = int(re.search(r"qpn=0x([0-9a-f]+)", out)[1], 16), 0, []
    s.setblocking(False)
    try:                        # drop what is queued
        while s.recv(65536):
            pass
    except BlockingIOError:
        s.settimeout(2)
    for n in range(rounds):
        src, dst = ((H4, G4), (H6, G6))[n % 2]
        pl = os.urandom((n * 97) % 1025)
        t = time.perf_counter()
        s.send(ud_frame(GMAC, HMAC, src, dst, q, 0x11111111, pl, psn=n, imm=None if n % 3 else n))
        r = None
        try:
            while not r or r["dst"] != src:
                r = parse(s.recv(65536))
        except TimeoutError:
            bad += 1
            print(f"echo {n}: no answer")
            continue
        rtt.append(time.perf_counter() - t)
        if not (r["ok"] and r["payload"] == pl and r["dqpn"] == 0x123 and r["sqpn"] == q
                and r["dmac"] == HMAC and r.get("imm") == (None if n % 3 else n)):
            bad += 1
            print(f"echo {n}: wrong answer {r}")
    print(f"echo: {rounds - bad} of {rounds} right, IPv4 and IPv6; median round trip {sorted(rtt)[len(rtt) // 2] * 1e6:.0f} us")
    return bad


def main():
    if "--inside" in sys.argv:
        sys.exit(bool(inside()))
    try:
        peer("net-up", "--ns", NS, "--mtu", "9000")
        peer("port", "ep0", "--ns", NS, "--mac", HMAC, "--mtu", "9000")
        peer("start", "inj", "--ns", NS, "--ip4", G4 + "/24", "--ip6", G6 + "/64", "--mac", GMAC)
        r = subprocess.run(["ip", "netns", "exec", NS, sys.executable, __file__, "--inside"]).returncode
    finally:
        if "-k" not in sys.argv:
            peer("stop", "inj", check=False)
            peer("net-down", "--ns", NS, check=False)
    sys.exit(r)


if __name__ == "__main__":
    main()

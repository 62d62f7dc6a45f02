#!/bin/bash
# Make the golden captures: two guests, a (…1) and b (…2), on one bridge.
#   make-pcaps.sh OUTDIR [SCENARIO-REGEX]
# The tools' own output goes to OUTDIR/log.  Needs build.sh's output.  Takes about two minutes; makes and deletes namespace rxegold.
set -uo pipefail
cd "$(dirname "$0")"
out=$(mkdir -p "$1/log" && cd "$1" && pwd); only=${2:-.}
ns=rxegold; p=./rxe-peer
A4=10.77.0.1 B4=10.77.0.2 A6=fd77::1 B6=fd77::2
touch "$out/commands.tsv"
trap '$p stop ga gb; $p net-down --ns $ns' EXIT
$p net-up --ns $ns --mtu 9000
$p start ga --ns $ns --ip4 $A4/24 --ip6 $A6/64 --mac 52:54:00:00:00:01 --mtu 9000 >/dev/null & w=$!
$p start gb --ns $ns --ip4 $B4/24 --ip6 $B6/64 --mac 52:54:00:00:00:02 --mtu 9000 >/dev/null || exit 1
wait $w || exit 1
setmtu() { mtu=$1; for g in ga gb; do $p exec $g -- ip link set eth0 mtu $1; done; }
setmtu 1500

# cap FILE SERVER-COMMAND READY CLIENT-COMMAND: READY is "tcp PORT" (wait until the
# server listens there), "re REGEX" (until it prints that), or "s SECONDS".
# @Q in the client command becomes the QPN the server printed.
cap() {
	local f=$1 srv=$2 ready=$3 cli=$4 j q=
	[[ $f =~ $only ]] || return 0
	ip netns exec $ns tcpdump -i tap-gb --immediate-mode -U -s 0 -c 190 -w "$out/$f.pcap" \
		"${filter:-udp port 4791}" 2>"$out/.tcpdump" & local tp=$!
	for i in 1 2 3 4 5 6 7 8 9 10; do grep -q listening "$out/.tcpdump" && break; sleep 0.1; done
	case $ready in
	re*) j=$($p bg gb --until "${ready#re }" -- "$srv") ;;
	tcp*) j=$($p bg gb -- "$srv"); $p exec gb -- "for i in 1 2 3 4 5 6 7 8 9 10; do ss -Hltn | grep -q ':${ready#tcp } ' && break; sleep 0.2; done" ;;
	s*) j=$($p bg gb -- "$srv"); sleep ${ready#s } ;;
	esac
	q=$(sed -n 's/.*READY qpn=\(0x[0-9a-f]*\).*/\1/p' <<<"$j"); j=$(head -1 <<<"$j")
	$p exec ga --timeout 20 -- "${cli//@Q/$q}" >"$out/log/$f.client" 2>&1; local rc=$?
	$p out gb $j --wait --timeout 5 >"$out/log/$f.server" 2>&1; local rs=$?
	$p kill gb $j >/dev/null 2>&1
	sleep 0.3; kill $tp 2>/dev/null; wait $tp 2>/dev/null
	sed -i "/^$f\t/d" "$out/commands.tsv"
	printf '%s\t%s\t%s\t%s\n' "$f" $mtu "$srv" "$cli" >>"$out/commands.tsv"
	echo "$f: client rc $rc, server rc $rs; $(python3 ../icrc_check.py "$out/$f.pcap" | tail -1 | sed 's/.*pcap: //')"
}
# One udtool receiver, several sends to it.
ud() { # FILE RECV-OPTIONS SEND-OPTIONS SIZES
	cap "$1" "udtool recv $2 -n $(wc -w <<<"$4") -t 5 -C" "re READY" \
		"for l in $4; do udtool send -Q @Q $3 -l \$l -q; done"
}
small="0 1 2 3 4 64 1000 1023 1024"
ud ud-v4-mtu1024 "" "-a $B4" "$small"
ud ud-v4-mtu1024-imm "" "-a $B4 -i 0x01020304" "$small"
ud ud-v6-mtu1024 "-6" "-a $B6" "$small"
ud ud-v6-mtu1024-imm "-6" "-a $B6 -i 0x01020304" "$small"
ud ud-v4-solicited-tos "-k 0x80000001" "-a $B4 -k 0x80000001 -e -T 0x6a -s 0xfffffe -n 4" "64"
ud ud-v6-solicited-tc "-6" "-a $B6 -e -T 0x6a -G 0x12345 -n 2" "64"
filter="udp port 4791 or arp or icmp6" cap ud-v4-arp "udtool recv -n 1 -t 5" "re READY" "ip neigh flush all; udtool send -a $B4 -Q @Q"
filter="udp port 4791 or arp or icmp6" cap ud-v6-nd "udtool recv -6 -n 1 -t 5" "re READY" "ip neigh flush all; udtool send -a $B6 -Q @Q"
cap ud-v4-echo "udtool echo -n 5 -t 5" "re READY" "udtool ping -a $B4 -Q @Q -n 5 -t 3"
# Multicast: rxe's attach opens the 33:33:... MAC filter only; IP has to join as well.
cap ud-v4-multicast "ip addr add 239.1.2.3/32 dev eth0 autojoin; udtool recv -M 239.1.2.3 -g 1 -n 2 -t 4; r=\$?; ip addr del 239.1.2.3/32 dev eth0; exit \$r" "re READY" "ip route add 239.0.0.0/8 dev eth0; udtool send -a 239.1.2.3 -Q 0xffffff -n 2"
cap ud-v6-multicast "ip addr add ff0e::77/128 dev eth0 autojoin; udtool recv -g 2 -M ff0e::77 -n 2 -t 4; r=\$?; ip addr del ff0e::77/128 dev eth0; exit \$r" "re READY" "udtool send -a ff0e::77 -g 2 -Q 0xffffff -n 2"
cap ibv-ud-pingpong-v4 "ibv_ud_pingpong -g 1 -n 10 -s 1024" "tcp 18515" "ibv_ud_pingpong -g 1 -n 10 -s 1024 $B4"
cap ibv-ud-pingpong-v6 "ibv_ud_pingpong -g 2 -n 10 -s 100" "tcp 18515" "ibv_ud_pingpong -g 2 -n 10 -s 100 $B4"
cap ib-send-bw-ud-v4 "ib_send_bw -F -c UD -x 1 -n 20 -s 1024" "tcp 18515" "ib_send_bw -F -c UD -x 1 -n 20 -s 1024 $B4"
cap ib-send-bw-ud-v6 "ib_send_bw -F -c UD -x 2 -n 20 -s 64" "tcp 18515" "ib_send_bw -F -c UD -x 2 -n 20 -s 64 $B4"
cap ib-send-lat-ud-v4 "ib_send_lat -F -c UD -x 1 -n 20 -s 64" "tcp 18515" "ib_send_lat -F -c UD -x 1 -n 20 -s 64 $B4"
cap ibv-rc-pingpong-v4 "ibv_rc_pingpong -g 1 -n 5 -s 64" "tcp 18515" "ibv_rc_pingpong -g 1 -n 5 -s 64 $B4"
cap ibv-rc-pingpong-v6 "ibv_rc_pingpong -g 2 -n 5 -s 64" "tcp 18515" "ibv_rc_pingpong -g 2 -n 5 -s 64 $B4"
cap ibv-rc-pingpong-v4-3000 "ibv_rc_pingpong -g 1 -n 5 -s 3000 -m 1024" "tcp 18515" "ibv_rc_pingpong -g 1 -n 5 -s 3000 -m 1024 $B4"
cap ibv-uc-pingpong-v4 "ibv_uc_pingpong -g 1 -n 5 -s 64" "tcp 18515" "ibv_uc_pingpong -g 1 -n 5 -s 64 $B4"
cap ib-send-bw-rc-v4 "ib_send_bw -F -x 1 -n 8 -s 1500 -m 1024" "tcp 18515" "ib_send_bw -F -x 1 -n 8 -s 1500 -m 1024 $B4"
cap ib-write-bw-rc-v4 "ib_write_bw -F -x 1 -n 8 -s 3000 -m 1024" "tcp 18515" "ib_write_bw -F -x 1 -n 8 -s 3000 -m 1024 $B4"
cap ib-write-lat-rc-v6 "ib_write_lat -F -x 2 -n 8 -s 8" "tcp 18515" "ib_write_lat -F -x 2 -n 8 -s 8 $B4"
cap ib-read-bw-rc-v4 "ib_read_bw -F -x 1 -n 8 -s 3000 -m 1024" "tcp 18515" "ib_read_bw -F -x 1 -n 8 -s 3000 -m 1024 $B4"
cap ib-read-lat-rc-v6 "ib_read_lat -F -x 2 -n 8 -s 8" "tcp 18515" "ib_read_lat -F -x 2 -n 8 -s 8 $B4"
cap ib-atomic-bw-fa-v4 "ib_atomic_bw -F -x 1 -n 8 -A FETCH_AND_ADD" "tcp 18515" "ib_atomic_bw -F -x 1 -n 8 -A FETCH_AND_ADD $B4"
cap ib-atomic-lat-cs-v4 "ib_atomic_lat -F -x 1 -n 8 -A CMP_AND_SWAP" "tcp 18515" "ib_atomic_lat -F -x 1 -n 8 -A CMP_AND_SWAP $B4"
cap cm-rping-v4 "rping -s -a $B4 -C 2 -S 64" "s 1" "rping -c -a $B4 -C 2 -S 64"
cap cm-rping-v6 "rping -s -a $B6 -C 2 -S 64" "s 1" "rping -c -a $B6 -C 2 -S 64"
cap cm-udaddy-v4 "udaddy -C 3 -S 64 -b $B4" "s 1" "udaddy -C 3 -S 64 -s $B4"
cap cm-udaddy-v6 "udaddy -C 3 -S 64 -b $B6" "s 1" "udaddy -C 3 -S 64 -s $B6"
cap cm-ucmatose-v4 "ucmatose -C 3 -S 64 -b $B4" "s 1" "ucmatose -C 3 -S 64 -s $B4"
cap cm-send-bw-ud-v4 "ib_send_bw -R -F -c UD -n 10 -s 64" "s 1" "ib_send_bw -R -F -c UD -n 10 -s 64 $B4"
if [[ mtu4096 =~ $only || $only == . ]]; then
	setmtu 4200
	big="1 64 1000 1024 2048 4095 4096"
	ud ud-v4-mtu4096 "" "-a $B4" "$big"
	ud ud-v4-mtu4096-imm "" "-a $B4 -i 0xdeadbeef" "$big"
	ud ud-v6-mtu4096 "-6" "-a $B6" "$big"
	ud ud-v6-mtu4096-imm "-6" "-a $B6 -i 0xdeadbeef" "$big"
	cap ibv-ud-pingpong-mtu4096-v4 "ibv_ud_pingpong -g 1 -n 5 -s 4096" "tcp 18515" "ibv_ud_pingpong -g 1 -n 5 -s 4096 $B4"
	cap ib-send-bw-ud-mtu4096-v4 "ib_send_bw -F -c UD -x 1 -n 10 -s 4096" "tcp 18515" "ib_send_bw -F -c UD -x 1 -n 10 -s 4096 $B4"
fi
if [[ mtu256 =~ $only || $only == . ]]; then
	$p exec ga -- ip -6 addr flush dev eth0; $p exec gb -- ip -6 addr flush dev eth0
	setmtu 400
	ud ud-v4-mtu256 "" "-a $B4" "1 255 256"
fi
rm -f "$out/.tcpdump"
./manifest.py "$out" >/dev/null && echo "wrote $out/MANIFEST.md"

#!/bin/bash
# Build the Soft-RoCE peer guest: Debian's own kernel + a small initramfs with
# rdma_rxe, rdma-core tools, perftest and udtool.  Needs a Debian 12 machine,
# root and a working apt; nothing is installed from the guest's packages, they
# are only unpacked below $RXE_CACHE.
#
#   RXE_CACHE   where to build (default ${XDG_CACHE_HOME:-~/.cache}/spraywire/rxe)
#   RXE_EXTRA   a folder whose content is copied over the guest's root (optional)
#
# Result: $RXE_CACHE/vmlinux and $RXE_CACHE/initramfs.cpio
#
# Nothing is done if what is there was built from these same files: build.sh --force builds
# anew, with the kernel and packages of now.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${RXE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spraywire/rxe}
mkdir -p "$cache/debs"
cd "$cache"
exec 9>.lock; flock 9		# one build at a time
stamp=$(cat "$here/build.sh" "$here/guest-init" "$here/udtool.c" | sha256sum)
if [ "${1:-}" != --force ] && [ -z "${RXE_EXTRA:-}" ] && [ "$(cat .stamp 2>/dev/null)" = "$stamp" ]; then
	echo "up to date: $cache"
	exit 0
fi
rm -f .stamp
export DEBIAN_FRONTEND=noninteractive
apt="apt-get -qq -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0"

# 1. Host tools: qemu, what this build needs, and what rxe-peer needs.
"$here/../../scripts/setup.sh" peer
apt-cache show linux-image-amd64 >/dev/null 2>&1 || $apt update

# 2. Guest packages: the current kernel, the tools and their shared libraries
#    (all lib* packages of the dependency closure; maintainer scripts never run).
kpkg=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/{print $2; exit}')
tools=(perftest ibverbs-utils ibverbs-providers rdmacm-utils iproute2)
libs=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
	--no-breaks --no-replaces --no-enhances "${tools[@]}" 2>/dev/null | grep -E '^(lib|zlib)' | sort -u)
if [ "$(cat debs/.list 2>/dev/null)" != "$(echo $kpkg ${tools[*]} busybox-static $libs)" ]; then
	rm -rf debs kernel sysroot; mkdir debs
	(cd debs && $apt download "$kpkg" busybox-static "${tools[@]}" $libs)
	echo $kpkg ${tools[*]} busybox-static $libs >debs/.list
fi
if [ ! -d sysroot ]; then
	mkdir -p kernel.tmp sysroot.tmp
	for d in debs/*.deb; do
		case $d in */linux-image-*) dpkg-deb -x "$d" kernel.tmp ;; *) dpkg-deb -x "$d" sysroot.tmp ;; esac
	done
	# Debian 12 is usr-merged, but some packages still ship /lib, /bin, /sbin.
	for d in bin sbin lib lib64; do
		[ -d sysroot.tmp/$d ] && { mkdir -p sysroot.tmp/usr/$d; cp -a sysroot.tmp/$d/. sysroot.tmp/usr/$d/; rm -rf sysroot.tmp/$d; }
		ln -s usr/$d sysroot.tmp/$d
	done
	mv kernel.tmp kernel; mv sysroot.tmp sysroot
fi
kver=$(basename kernel/boot/vmlinuz-* | sed 's/^vmlinuz-//')
[ -f "kernel/lib/modules/$kver/modules.dep" ] || depmod -b "$cache/kernel" "$kver"

# 3. Kernel: unpack the xz payload of the bzImage, so that the guest boots the
#    plain ELF through PVH (saves seconds of decompression under TCG).
[ vmlinux -nt sysroot ] || python3 - kernel/boot/vmlinuz-"$kver" vmlinux <<'PY'
import lzma, sys
d = open(sys.argv[1], "rb").read()
elf = lzma.LZMADecompressor().decompress(d[d.index(b"\xfd7zXZ\0"):])
assert elf[:4] == b"\x7fELF"
open(sys.argv[2], "wb").write(elf)
PY

# 4. Initramfs.
root=$cache/root
rm -rf "$root"; mkdir -p "$root"/{proc,sys,dev,tmp,run,etc,root,usr/{bin,lib/x86_64-linux-gnu/libibverbs,lib64},modules}
for d in bin lib lib64; do ln -s usr/$d "$root/$d"; done
ln -s usr/bin "$root/sbin"; ln -s bin "$root/usr/sbin"
cp sysroot/bin/busybox "$root/usr/bin/"
for a in $("$root/usr/bin/busybox" --list); do
	[ -e "$root/usr/bin/$a" ] || ln -s busybox "$root/usr/bin/$a"
done
gcc -O2 -Wall -o "$root/usr/bin/udtool" "$here/udtool.c" -libverbs
bins=(ip rdma tc ss)
for p in perftest ibverbs-utils rdmacm-utils; do
	bins+=($(dpkg-deb -c debs/${p}_*.deb | awk '$6 ~ /\/s?bin\/./ && $1 ~ /^-/ {sub(".*/","",$6); print $6}'))
done
for b in "${bins[@]}"; do
	f=$(find sysroot/usr/bin sysroot/usr/sbin -name "$b" -print -quit); [ -n "$f" ] || continue
	rm -f "$root/usr/bin/$b"; cp -L "$f" "$root/usr/bin/$b"
done
cp sysroot/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so "$root/usr/lib/x86_64-linux-gnu/libibverbs/"
mkdir -p "$root/etc/libibverbs.d"; echo 'driver rxe' >"$root/etc/libibverbs.d/rxe.driver"
cp -L sysroot/lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp -L sysroot/lib/x86_64-linux-gnu/libgcc_s.so.1 "$root/usr/lib/x86_64-linux-gnu/"	# dlopened by pthread_exit
# Shared libraries: follow DT_NEEDED by name from everything copied so far.
python3 - sysroot "$root" <<'PY'
import glob, os, re, shutil, subprocess, sys
sysroot, root = sys.argv[1:]
libdir = "usr/lib/x86_64-linux-gnu"
todo = [f for f in glob.glob(root + "/usr/bin/*") if not os.path.islink(f)]
todo += glob.glob(f"{root}/{libdir}/libibverbs/*.so")
done = set()
while todo:
    f = todo.pop()
    if open(f, "rb").read(4) != b"\x7fELF":
        continue
    out = subprocess.run(["objdump", "-p", f], capture_output=True, text=True).stdout
    for n in re.findall(r"NEEDED\s+(\S+)", out):
        src, dst = f"{sysroot}/{libdir}/{n}", f"{root}/{libdir}/{n}"
        if n in done or n.startswith("ld-linux"):
            continue
        done.add(n)
        if not os.path.exists(src):
            sys.exit(f"build.sh: {n} (needed by {f}) not found")
        shutil.copy(os.path.realpath(src), dst)
        todo.append(dst)
PY
# Kernel modules, in load order.  crc32_generic is what rxe asks the crypto layer
# for at run time (the ICRC); it is no symbol dependency, so name it.
for m in virtio_pci virtio_net virtio_console crc32_generic \
	rdma_rxe rdma_ucm ib_umad; do
	modprobe -d "$cache/kernel" -S "$kver" --show-depends $m | awk '/^insmod/{print $2}'
done | awk '!s[$0]++' | while read -r ko; do
	cp "$ko" "$root/modules/"; basename "$ko" >>"$root/modules/order"
done
cp "$here/guest-init" "$root/init"; chmod 755 "$root/init"
[ -z "${RXE_EXTRA:-}" ] || cp -a "$RXE_EXTRA/." "$root/"
(cd "$root" && find . -print0 | cpio --null -o -H newc --quiet --owner=0:0) >initramfs.cpio.tmp
mv initramfs.cpio.tmp initramfs.cpio
[ -n "${RXE_EXTRA:-}" ] || echo "$stamp" >.stamp
echo "built: kernel $kver, $(du -h --apparent-size initramfs.cpio | cut -f1) initramfs in $cache"

//! Which files a living process holds, and which only lie there.

use super::Host;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What living processes hold: locked files and bound sockets.
///
/// DPDK locks its files as long as it runs, and sockets are listed while somebody has them. Both lists end at the
/// namespaces of this process: who shares a folder with another container sees less.
#[derive(Clone, Debug, Default)]
pub struct Held {
    locked: HashSet<u64>,
    sockets: HashSet<String>,
}

impl Held {
    /// What is held now.
    pub fn now(host: &Host) -> Held {
        let locks = host.read("/proc/locks").unwrap_or_default();
        // "1: POSIX  ADVISORY  WRITE 1234 00:1a:5678 0 EOF": the sixth word ends with the inode's number. Devices are not
        // compared, since some file systems show another number there: a chance meeting only makes us more careful.
        let inode = |line: &str| line.split_whitespace().nth(5)?.rsplit(':').next()?.parse().ok();
        let sockets = host.read("/proc/net/unix").unwrap_or_default();
        let socket = |line: &str| Some(line.split_whitespace().nth(7)?.to_owned());
        Held {
            locked: locks.lines().filter_map(inode).collect(),
            sockets: sockets.lines().skip(1).filter_map(socket).collect(),
        }
    }

    /// Whether somebody has this file locked.
    pub fn is_locked(&self, file: &Path) -> bool {
        fs::symlink_metadata(file).is_ok_and(|m| self.locked.contains(&m.ino()))
    }

    /// Whether somebody has a socket of that path. A path may lead through links, so the ends are compared too.
    pub fn has_socket(&self, path: &str) -> bool {
        let without = |p: &str| p.strip_prefix("/var").unwrap_or(p).to_owned();
        self.sockets.contains(path) || self.sockets.iter().any(|s| without(s) == without(path))
    }
}

/// A folder of DPDK's whose process is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The folder, or the pattern of the files.
    pub path: String,
    /// Files in it.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The folders of DPDK processes that are gone.
pub fn dead_runtimes(host: &Host, held: &Held) -> Vec<Leftover> {
    let base = host.dpdk_runtime();
    let mut dead = Vec::new();
    for prefix in host.list(&base) {
        let folder = format!("{base}/{prefix}");
        if !host.path(&folder).is_dir() {
            continue;
        }
        let files = host.list(&folder);
        let path = |name: &String| format!("{folder}/{name}");
        let in_use = |name: &String| {
            let file = host.path(&path(name));
            held.is_locked(&file) || held.has_socket(&path(name)) || is_answered(&file)
        };
        // An empty folder is nobody's burden: DPDK makes one for every process and removes none.
        if files.is_empty() || files.iter().any(in_use) {
            continue;
        }
        let bytes =
            files.iter().filter_map(|n| fs::metadata(host.path(&path(n))).ok()).map(|m| m.len()).sum();
        dead.push(Leftover { path: folder, files: files.len(), bytes });
    }
    dead
}

/// Hugepages in files of DPDK that nobody holds: they stay taken until the files are removed.
pub fn dead_pages(host: &Host, held: &Held) -> Vec<Leftover> {
    let mut dead: Vec<Leftover> = Vec::new();
    for mount in host.mounts("hugetlbfs") {
        for name in host.list(&mount) {
            // DPDK calls them PREFIXmap_N.
            let Some((prefix, number)) = name.rsplit_once("map_") else { continue };
            if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            let file = host.path(&format!("{mount}/{name}"));
            if held.is_locked(&file) {
                continue;
            }
            let bytes = fs::metadata(&file).map_or(0, |m| m.len());
            let path = format!("{mount}/{prefix}map_*");
            match dead.iter_mut().find(|l| l.path == path) {
                Some(leftover) => {
                    leftover.files += 1;
                    leftover.bytes += bytes;
                }
                None => dead.push(Leftover { path, files: 1, bytes }),
            }
        }
    }
    dead
}

/// Whether a path is a socket that nobody has any more.
pub fn is_dead_socket(host: &Host, held: &Held, path: &str) -> bool {
    let file = host.path(path);
    fs::symlink_metadata(&file).is_ok_and(|m| m.file_type().is_socket())
        && !held.has_socket(path)
        && !is_answered(&file)
}

/// Whether somebody listens at a socket, in whichever network namespace: the kernel lists those of our own only.
///
/// DPDK's sockets and those of memif are of other kinds than the stream that is tried here, and the kernel says that they are
/// before anybody hears of it.
pub fn is_answered(socket: &Path) -> bool {
    let wrong_kind = rustix::io::Errno::PROTOTYPE.raw_os_error();
    UnixStream::connect(socket).map_or_else(|e| e.raw_os_error() == Some(wrong_kind), |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::made_up::Machine;
    use std::os::unix::net::UnixListener;

    fn lock(machine: &Machine, path: &str) {
        let inode = fs::metadata(machine.host.path(path)).unwrap().ino();
        let line = format!("1: POSIX  ADVISORY  WRITE 77 00:2f:{inode} 448 1231\n");
        machine.file("/proc/locks", &line);
    }

    #[test]
    fn a_runtime_folder_is_dead_unless_something_in_it_is_held() {
        let machine = Machine::new();
        machine.file("/var/run/dpdk/gone/config", "12345").file("/var/run/dpdk/gone/fbarray_memzone", "1");
        machine.file("/var/run/dpdk/alive/config", "").file("/var/run/dpdk/talks/mp_socket", "");
        machine.folder("/var/run/dpdk/empty").file("/var/run/dpdk/stray", "");
        machine.file(
            "/proc/net/unix",
            "Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 0 2 1 9 /run/dpdk/talks/mp_socket\n",
        );
        lock(&machine, "/var/run/dpdk/alive/config");
        machine.folder("/var/run/dpdk/elsewhere");
        let _elsewhere = UnixListener::bind(machine.host.path("/var/run/dpdk/elsewhere/socket")).unwrap();
        let dead = dead_runtimes(&machine.host, &Held::now(&machine.host));
        assert_eq!(dead, [Leftover { path: "/var/run/dpdk/gone".into(), files: 2, bytes: 6 }]);
        // The lock goes with its process.
        machine.file("/proc/locks", "");
        assert_eq!(dead_runtimes(&machine.host, &Held::now(&machine.host)).len(), 2);
    }

    #[test]
    fn pages_without_a_lock_are_dead() {
        let machine = Machine::new();
        machine.file("/proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0\n");
        for name in ["rtemap_0", "rtemap_1", "othermap_7", "something", "rtemap_x", "rtemap_2"] {
            machine.file(&format!("/dev/hugepages/{name}"), "page");
        }
        lock(&machine, "/dev/hugepages/rtemap_2");
        let dead = dead_pages(&machine.host, &Held::now(&machine.host));
        let expected = [
            Leftover { path: "/dev/hugepages/othermap_*".into(), files: 1, bytes: 4 },
            Leftover { path: "/dev/hugepages/rtemap_*".into(), files: 2, bytes: 8 },
        ];
        assert_eq!(dead, expected);
    }

    #[test]
    fn a_socket_is_dead_when_nobody_has_it() {
        let machine = Machine::new();
        machine.folder("/run");
        let listener = UnixListener::bind(machine.host.path("/run/memif.sock")).unwrap();
        let dead = |path| is_dead_socket(&machine.host, &Held::now(&machine.host), path);
        assert!(!dead("/run/memif.sock"), "somebody listens, in a namespace that is not listed");
        drop(listener);
        assert!(dead("/run/memif.sock"));
        machine.file("/proc/net/unix", "Num\n0: 2 0 0 1 1 9 /run/memif.sock\n");
        assert!(!dead("/run/memif.sock"));
        assert!(!dead("/run/nothing.sock"));
        machine.file("/run/file.sock", "");
        assert!(!dead("/run/file.sock"), "not a socket");
    }
}

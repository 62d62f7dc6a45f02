//! What dead processes left.

use super::{Ask, Finding};
use crate::host::Host;
use crate::host::use_of_files::{Held, Leftover, dead_pages, dead_runtimes, is_dead_socket};

/// Where `net_memif` puts its socket if none is named.
const MEMIF_SOCKET: &str = "/run/memif.sock";

pub(super) fn check(host: &Host, held: &Held, ask: &Ask) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Leftover { path, files, bytes } in dead_runtimes(host, held) {
        findings.push(Finding::note(
            "stale",
            format!("{path} ({files} files, {} KiB) belongs to no process that runs", bytes.div_ceil(1024)),
            format!("rm -r {path}"),
        ));
    }
    for Leftover { path, files, bytes } in dead_pages(host, held) {
        findings.push(Finding::warning(
            "stale",
            format!("{path} ({files} files) hold {} MiB of hugepages for no process that runs", bytes >> 20),
            format!("rm {path}"),
        ));
    }
    let named = ask.device.iter().flat_map(|d| d.split(',')).find_map(|w| w.strip_prefix("socket="));
    let mut sockets = vec![MEMIF_SOCKET];
    sockets.extend(named.filter(|path| path.starts_with('/') && *path != MEMIF_SOCKET));
    for path in sockets {
        if is_dead_socket(host, held, path) {
            findings.push(Finding::warning(
                "stale",
                format!("nobody listens at {path}: a memif server that wants it may be refused"),
                format!("rm {path}"),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("stale", "no files of dead processes"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::tests::ask;
    use super::*;
    use crate::host::made_up::Machine;
    use std::os::unix::net::UnixListener;

    #[test]
    fn each_kind_of_leftover_is_found_with_what_removes_it() {
        let machine = Machine::new();
        let check =
            || check(&machine.host, &Held::now(&machine.host), &ask("--port net_memif0,socket=/tmp/x.sock"));
        assert_eq!(check()[0].level, Level::Ok);
        machine.file("/var/run/dpdk/rte/config", "x").file("/proc/mounts", "none /huge hugetlbfs rw 0 0\n");
        machine.file("/huge/rtemap_0", "x").folder("/tmp");
        let socket = UnixListener::bind(machine.host.path("/tmp/x.sock")).unwrap();
        assert!(check().iter().all(|f| !f.found.contains("x.sock")), "it is listened at");
        drop(socket);
        let mends: Vec<_> = check().into_iter().filter_map(|f| f.mend).collect();
        assert_eq!(mends, ["rm -r /var/run/dpdk/rte", "rm /huge/rtemap_*", "rm /tmp/x.sock"]);
    }
}

//! Hugepages, and memory that may be locked.

use super::{Ask, Finding};
use crate::host::Host;

/// MiB of hugepages that DPDK takes for the pools and rings of a usual port or two.
const ENOUGH_MB: u64 = 256;

pub(super) fn check(host: &Host, ask: &Ask) -> Vec<Finding> {
    let mut findings = vec![hugepages(host, ask)];
    findings.extend(locked(host, ask));
    findings
}

/// MiB in total and free of one size of page, below a folder of the kernel's.
fn pages(host: &Host, base: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for name in host.list(base) {
        let kib: Option<u64> =
            name.strip_prefix("hugepages-").and_then(|s| s.strip_suffix("kB")?.parse().ok());
        let count = |file: &str| {
            let n = host.number(&format!("{base}/{name}/{file}")).unwrap_or(0);
            u64::try_from(n).unwrap_or(0).saturating_mul(kib.unwrap_or(0)) / 1024
        };
        sum.0 += count("nr_hugepages");
        sum.1 += count("free_hugepages").saturating_sub(count("resv_hugepages"));
    }
    sum
}

fn hugepages(host: &Host, ask: &Ask) -> Finding {
    let (total, free) = pages(host, "/sys/kernel/mm/hugepages");
    let node = ask.numa(host).filter(|_| ask.is_nic());
    let at_node = node.map(|n| pages(host, &format!("/sys/devices/system/node/node{n}/hugepages")).1);
    let folder = node.map_or("/sys/kernel/mm/hugepages".to_owned(), |n| {
        format!("/sys/devices/system/node/node{n}/hugepages")
    });
    let mend = format!("echo 512 > {folder}/hugepages-2048kB/nr_hugepages   (1 GiB)");
    let where_mounted = host.mounts("hugetlbfs");
    let mounted = match where_mounted.is_empty() {
        true => "no hugetlbfs is mounted, which only several processes on one port need".to_owned(),
        false => format!("hugetlbfs is at {}", where_mounted.join(", ")),
    };
    match at_node {
        Some(free_there) if free_there < ENOUGH_MB && free >= ENOUGH_MB => Finding::warning(
            "hugepages",
            format!(
                "{free} MiB are free, but {free_there} on NUMA node {}, where the NIC is",
                node.unwrap_or(0)
            ),
            mend,
        ),
        _ if free >= ENOUGH_MB => {
            Finding::ok("hugepages", format!("{free} of {total} MiB are free; {mounted}"))
        }
        _ if ask.is_nic() => Finding::problem(
            "hugepages",
            format!("{free} of {total} MiB are free, a NIC needs about {ENOUGH_MB}"),
            mend,
        ),
        _ => Finding::note(
            "hugepages",
            format!(
                "{free} of {total} MiB are free; virtual ports do without, a NIC needs about {ENOUGH_MB}"
            ),
            mend,
        ),
    }
}

/// MiB of locked memory that a NIC by way of VFIO or an AF_XDP socket wants at least.
const LOCKED_MB: u64 = 512;

fn locked(host: &Host, ask: &Ask) -> Option<Finding> {
    let wants = ask.is_nic() || ask.device.as_ref().is_some_and(|d| d.starts_with("net_af_xdp"));
    let limits = host.read("/proc/self/limits").filter(|_| wants)?;
    let line = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?;
    let soft = line.split_whitespace().next()?;
    /// `CAP_IPC_LOCK` of capabilities(7) lifts the limit.
    const CAP_IPC_LOCK: u32 = 14;
    let lifted = host.process().caps & (1 << CAP_IPC_LOCK) != 0;
    match soft.parse::<u64>() {
        Ok(bytes) if bytes >> 20 < LOCKED_MB && !lifted => Some(Finding::problem(
            "memlock",
            format!(
                "this process may lock {} KiB of memory, and DMA wants {LOCKED_MB} MiB or more",
                bytes >> 10
            ),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit",
        )),
        _ => Some(Finding::ok("memlock", "enough memory may be locked")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::tests::{ask, only};
    use super::*;
    use crate::host::made_up::Machine;

    fn pages_of(machine: &Machine, base: &str, kib: u64, total: u64, free: u64) {
        let of = |file: &str| format!("{base}/hugepages-{kib}kB/{file}");
        machine.file(&of("nr_hugepages"), &total.to_string());
        machine.file(&of("free_hugepages"), &free.to_string()).file(&of("resv_hugepages"), "0");
    }

    #[test]
    fn pages_of_all_sizes_are_counted() {
        let machine = Machine::new();
        pages_of(&machine, "/sys/kernel/mm/hugepages", 2048, 100, 40);
        let level = |line| only(&check(&machine.host, &ask(line)), "hugepages").level;
        assert_eq!(level(""), Level::Note);
        assert_eq!(level("--port 0000:03:00.0"), Level::Problem);
        pages_of(&machine, "/sys/kernel/mm/hugepages", 1_048_576, 2, 1);
        assert_eq!(level("--port 0000:03:00.0"), Level::Ok);
        let found = check(&machine.host, &ask(""));
        let finding = only(&found, "hugepages");
        assert!(finding.found.starts_with("1104 of 2248 MiB are free"), "{finding:?}");
    }

    #[test]
    fn pages_on_the_wrong_node_are_found_out() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0");
        pages_of(&machine, "/sys/kernel/mm/hugepages", 2048, 512, 512);
        pages_of(&machine, "/sys/devices/system/node/node1/hugepages", 2048, 0, 0);
        let found = check(&machine.host, &ask("--port 0000:03:00.0"));
        let finding = only(&found, "hugepages");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.mend.as_ref().unwrap().contains("node1/hugepages"), "{finding:?}");
    }

    #[test]
    fn locked_memory_is_a_matter_of_limit_and_capability() {
        let machine = Machine::new();
        machine.file(
            "/proc/self/limits",
            "Max locked memory         8388608              8388608              bytes\n",
        );
        assert_eq!(check(&machine.host, &ask("--port net_memif0")).len(), 1);
        machine.process(1000, 0, "0");
        let found = check(&machine.host, &ask("--port 0000:03:00.0"));
        assert_eq!(only(&found, "memlock").level, Level::Problem);
        assert!(only(&found, "memlock").found.contains("8192 KiB"));
        machine.process(1000, 1 << 14, "0");
        assert_eq!(only(&check(&machine.host, &ask("--port 0000:03:00.0")), "memlock").level, Level::Ok);
        machine
            .process(1000, 0, "0")
            .file("/proc/self/limits", "Max locked memory  unlimited  unlimited  bytes\n");
        assert_eq!(
            only(&check(&machine.host, &ask("--port net_af_xdp0,iface=x")), "memlock").level,
            Level::Ok
        );
    }
}

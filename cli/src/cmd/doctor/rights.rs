//! What this process may do, and whether the port asks for more.

use super::{Ask, Finding, Kind};
use crate::host::Host;
use dpdk::Needs;

/// Virtual ports that reach beyond this machine's memory.
const REACHING: [&str; 3] = ["net_af_packet", "net_tap", "net_af_xdp"];

pub(super) fn check(host: &Host, ask: &Ask) -> Vec<Finding> {
    let caps = host.process().caps;
    let closed = |needs: Needs| {
        let files = needs.files.iter().filter(|file| !host.usable(file));
        files.copied().collect::<Vec<_>>()
    };
    let Some(device) = &ask.device else {
        let mut can = vec!["net_memif", "net_ring"];
        let mut cannot = Vec::new();
        for driver in REACHING {
            let needs = Needs::of(driver);
            let lack = [needs.missing(caps), closed(needs)].concat();
            if lack.is_empty() {
                can.push(driver);
            } else {
                cannot.push(format!("{driver} lacks {}", lack.join(" and ")));
            }
        }
        let can = format!("this process may use {}", can.join(", "));
        return vec![if cannot.is_empty() {
            Finding::ok("rights", can)
        } else {
            let found = format!("{can}; {}", cannot.join(", "));
            Finding::note(
                "rights",
                found,
                "for the others: run as root, or see --port DEVICE for what one needs",
            )
        }];
    };
    let needs = Needs::of(device);
    let driver =
        if matches!(ask.kind, Kind::Pci(_)) { "a NIC" } else { device.split(',').next().unwrap_or_default() };
    let missing = needs.missing(caps);
    let mut findings = Vec::new();
    if !missing.is_empty() {
        let list = missing.join(",").to_lowercase();
        findings.push(Finding::problem(
            "rights",
            format!("this process lacks {}, which {driver} needs", missing.join(" and ")),
            format!("run as root, or: setcap {list}=ep $(command -v spraywire)\nwithout privileges net_memif works"),
        ));
    }
    for file in closed(needs) {
        let mend = match (host.exists(file), file) {
            (true, _) => format!("give this user access: chmod or setfacl {file}, or run as root"),
            (false, "/dev/net/tun") => "modprobe tun".to_owned(),
            (false, "/dev/vfio/vfio") => "modprobe vfio-pci".to_owned(),
            (false, "/dev/vhost-net") => "modprobe vhost-net".to_owned(),
            (false, _) => format!("{file} does not exist: load the kernel module that makes it"),
        };
        findings.push(Finding::problem("rights", format!("cannot open {file}, which {driver} needs"), mend));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("rights", format!("this process has what {driver} needs")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::tests::{ask, only};
    use super::*;
    use crate::host::made_up::Machine;

    #[test]
    fn the_missing_capability_is_named() {
        let machine = Machine::new();
        machine.process(1000, 1 << 12, "0-3");
        let found = check(&machine.host, &ask("--port net_af_packet0,iface=eth0"));
        let finding = only(&found, "rights");
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.found.contains("lacks CAP_NET_RAW"), "{finding:?}");
        assert!(finding.mend.as_ref().unwrap().contains("setcap cap_net_raw=ep"), "{finding:?}");
        machine.process(1000, 1 << 13, "0-3");
        assert_eq!(
            only(&check(&machine.host, &ask("--port net_af_packet0,iface=eth0")), "rights").level,
            Level::Ok
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_asked_of_its_module() {
        let machine = Machine::new();
        let found = check(&machine.host, &ask("--port net_tap0"));
        assert_eq!(only(&found, "rights").mend.as_deref(), Some("modprobe tun"));
        machine.file("/dev/net/tun", "");
        assert_eq!(only(&check(&machine.host, &ask("--port net_tap0")), "rights").level, Level::Ok);
    }

    #[test]
    fn without_a_port_it_is_said_which_may_be_used() {
        let machine = Machine::new();
        machine.process(1000, 1 << 13, "0-3");
        let found = check(&machine.host, &ask(""));
        let finding = only(&found, "rights");
        assert_eq!(finding.level, Level::Note);
        assert!(
            finding.found.starts_with("this process may use net_memif, net_ring, net_af_packet;"),
            "{finding:?}"
        );
        assert!(finding.found.contains("net_tap lacks CAP_NET_ADMIN and /dev/net/tun"), "{finding:?}");
    }
}

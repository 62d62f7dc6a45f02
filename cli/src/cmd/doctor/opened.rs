//! What DPDK says: its drivers, and the port once it is attached.

use super::{DoctorArgs, Finding};
use crate::endpoint::{Role, look};
use crate::error::Error;
use dpdk::{Eal, PortInfo};

/// DPDK itself and its drivers.
pub(super) fn installed() -> Vec<Finding> {
    let version = Eal::version();
    let Some(folder) = Eal::driver_dir() else {
        return vec![Finding::ok("dpdk", format!("{version}, its drivers linked in"))];
    };
    let count = crate::cmd::ports::drivers::net(&folder).len();
    vec![if count == 0 {
        Finding::problem(
            "dpdk",
            format!("{version} has no network driver in {}", folder.display()),
            "install them (Debian, Ubuntu: apt install librte-net-memif23 librte-net-af-packet23, or libdpdk-dev for all)",
        )
    } else {
        Finding::ok("dpdk", format!("{version} with {count} network drivers in {}", folder.display()))
    }]
}

/// Attaches the port and looks at it.
pub(super) fn check(args: &DoctorArgs, verbosity: u8) -> Vec<Finding> {
    let found = look(&args.endpoint, Role::Server, verbosity)
        .and_then(|(eal, selector)| eal.find(&selector).and_then(|id| eal.port(id)).map_err(Error::usage));
    match found {
        Ok(info) => of_port(&info, args.endpoint.mtu),
        Err(e) => vec![refused(&e)],
    }
}

/// A port that was not opened.
pub(super) fn refused(error: &Error) -> Finding {
    let mend = error.what_to_do().unwrap_or("if nothing above explains it: -vv has DPDK's own words");
    Finding::problem("port", error.message().to_owned(), mend.to_owned())
}

pub(super) fn of_port(info: &PortInfo, mtu: Option<u16>) -> Vec<Finding> {
    let PortInfo { name, driver, min_mtu, max_mtu, max_rx_queues, .. } = info;
    let mut findings =
        vec![Finding::ok("port", format!("{name} ({driver}) attaches; MAC address {}", info.mac))];
    if let Some(mtu) = mtu
        && !(*min_mtu..=*max_mtu).contains(&mtu)
    {
        findings.push(Finding::problem(
            "mtu",
            format!("{name} can have an MTU of {min_mtu} to {max_mtu} bytes, not {mtu}"),
            format!("--mtu {}", mtu.clamp(*min_mtu, *max_mtu)),
        ));
    }
    if *max_rx_queues > 1 && !info.rss_by_udp_port() {
        let spread = info.rss_names();
        let spread = if spread.is_empty() { "nothing".to_owned() } else { spread.join(", ") };
        findings.push(Finding::note(
            "rss",
            format!(
                "{name} has {max_rx_queues} receive queues and spreads {spread} over them, not by UDP ports"
            ),
            "one receive queue is all that two hosts can fill here; use one worker for this port",
        ));
    } else {
        let spread = if *max_rx_queues > 1 { ", chosen by UDP ports" } else { "" };
        findings.push(Finding::ok("rss", format!("{name} has up to {max_rx_queues} receive queues{spread}")));
    }
    findings
}

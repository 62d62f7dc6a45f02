//! Commands on DPDK's telemetry socket, for those who watch DPDK programs by that.

use super::Probe;
use crate::error::Error;
use crate::host::Host;
use crate::host::use_of_files::is_answered;
use dataplane::counters::DropReason;
use dataplane::observe::Snapshot;
use dpdk::{Numbers, telemetry_command};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// What DPDK calls its socket.
const SOCKET: &str = "dpdk_telemetry.v2";

/// The file prefix, and so the folder of the socket, of this process.
pub fn prefix(name: Option<&super::Name>) -> String {
    name.map_or_else(|| format!("spraywire-{}", std::process::id()), |name| name.as_str().to_owned())
}

/// Refuses a name by which a process of DPDK's answers already: the two would take each other's socket away.
///
/// # Errors
/// The name, and what to do.
pub fn check(name: Option<&super::Name>) -> Result<(), Error> {
    let (host, prefix) = (Host::here(), prefix(name));
    check_in(&host.path(&host.dpdk_runtime()), &prefix)
}

fn check_in(runtime: &Path, prefix: &str) -> Result<(), Error> {
    if !is_answered(&runtime.join(prefix).join(SOCKET)) {
        return Ok(());
    }
    Err(Error::usage(format_args!("another process answers telemetry by the name {prefix}"))
        .hint("give each endpoint a name of its own: --name"))
}

/// The socket's folder. Dropping it removes what DPDK leaves there.
pub struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // DPDK removes the socket at the end of the process, the folder never.
        let _ = std::fs::remove_file(self.0.join(SOCKET));
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Registers the commands.
///
/// # Errors
/// DPDK's refusal.
pub fn serve(probe: &Arc<Probe>, prefix: &str) -> Result<Folder, Error> {
    let host = Host::here();
    let folder = Folder(host.path(&host.dpdk_runtime()).join(prefix));
    let register = |name, help, tell: fn(&Snapshot, usize) -> Option<Numbers>| {
        let probe: Weak<Probe> = Arc::downgrade(probe);
        telemetry_command(name, help, move |parameters| {
            let index = if parameters.is_empty() { 0 } else { parameters.parse().ok()? };
            tell(&probe.upgrade()?.look().into_iter().next()?.now?, index)
        })
        .map_err(Error::failed)
    };
    register("/spraywire/port", "Counters of a port of the endpoint. Parameter: its index, 0 if none", port)?;
    register("/spraywire/qp", "Counters of a queue pair. Parameter: its index, 0 if none", qp)?;
    tracing::info!("telemetry by dpdk-telemetry.py -f {prefix}");
    Ok(folder)
}

fn port(snapshot: &Snapshot, index: usize) -> Option<Numbers> {
    let port = snapshot.ports.get(index)?;
    let (c, d) = (&port.counters, &port.driver);
    let mut numbers: Numbers = [
        ("link_up", u64::from(port.link_up)),
        ("rx_packets", c.rx_packets),
        ("rx_bytes", c.rx_bytes),
        ("delivered", c.delivered),
        ("delivered_bytes", c.delivered_bytes),
        ("neighbour", c.neighbour),
        ("echo", c.echo),
        ("ignored", c.ignored),
        ("dropped", c.dropped_total()),
        ("tx_packets", c.tx_packets),
        ("tx_bytes", c.tx_bytes),
        ("tx_control", c.tx_control),
        ("tx_busy", c.tx_busy),
        ("tx_no_buffer", c.tx_no_buffer),
        ("link_lost", c.link_lost),
        ("link_back", c.link_back),
        ("driver/rx_packets", d.rx_packets),
        ("driver/rx_missed", d.rx_missed),
        ("driver/rx_errors", d.rx_errors),
        ("driver/rx_no_mbuf", d.rx_no_mbuf),
        ("driver/tx_packets", d.tx_packets),
        ("driver/tx_errors", d.tx_errors),
    ]
    .map(|(name, n)| (name.to_owned(), n))
    .into();
    if let Some(q) = &port.queue {
        let ways = [
            ("queue/rx_packets", q.rx),
            ("queue/tx_packets", q.tx),
            ("queue/steered_in", q.steered_in),
            ("queue/steered_out", q.steered_out),
            ("queue/steer_full", q.steer_full),
        ];
        numbers.extend(ways.map(|(name, n)| (name.to_owned(), n)));
    }
    numbers.extend(DropReason::all().map(|reason| (format!("dropped/{reason}"), c.dropped(reason))));
    Some(numbers)
}

fn qp(snapshot: &Snapshot, index: usize) -> Option<Numbers> {
    let qp = snapshot.qps.get(index)?;
    let numbers = [
        ("qpn", qp.qpn.get().into()),
        ("sent", qp.counters.sent),
        ("received", qp.counters.received),
        ("qkey_violations", qp.counters.qkey_violations),
        ("no_receive", qp.counters.no_receive),
        ("sends_outstanding", qp.outstanding.into()),
        ("receives_posted", qp.receives as u64),
    ];
    Some(numbers.map(|(name, n)| (name.to_owned(), n)).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};

    #[test]
    fn each_name_has_its_own_number() {
        use crate::observe::tests::port_of_numbers;
        let port_snapshot = port_of_numbers();
        let snapshot = Snapshot { ports: vec![port_snapshot], ..Snapshot::default() };
        assert!(port(&snapshot, 1).is_none() && qp(&snapshot, 0).is_none());
        let told = port(&snapshot, 0).unwrap();
        let dropped: u64 = (0..DropReason::all().count() as u64).sum();
        let expected = [
            ("link_up", 1),
            ("rx_packets", 1),
            ("rx_bytes", 2),
            ("delivered", 3),
            ("delivered_bytes", 4),
            ("neighbour", 5),
            ("echo", 6),
            ("ignored", 7),
            ("dropped", dropped),
            ("tx_packets", 8),
            ("tx_bytes", 9),
            ("tx_control", 10),
            ("tx_busy", 11),
            ("tx_no_buffer", 12),
            ("link_lost", 13),
            ("link_back", 14),
            ("driver/rx_packets", 31),
            ("driver/rx_missed", 33),
            ("driver/rx_errors", 34),
            ("driver/rx_no_mbuf", 35),
            ("driver/tx_packets", 36),
            ("driver/tx_errors", 38),
            ("queue/rx_packets", 41),
            ("queue/tx_packets", 42),
            ("queue/steered_in", 43),
            ("queue/steered_out", 44),
            ("queue/steer_full", 45),
        ];
        let number = |name: &str| told.iter().find(|(n, _)| n == name).map(|(_, number)| *number);
        for (name, n) in expected {
            assert_eq!(number(name), Some(n), "{name}");
        }
        for (reason, n) in DropReason::all().zip(0..) {
            assert_eq!(number(&format!("dropped/{reason}")), Some(n), "{reason}");
        }
        assert_eq!(told.len(), expected.len() + DropReason::all().count());
    }

    #[test]
    fn a_name_that_answers_is_taken_and_one_that_is_dead_is_not() {
        let runtime = tempfile::tempdir().unwrap();
        let path = runtime.path().join("rx").join(SOCKET);
        std::fs::create_dir(runtime.path().join("rx")).unwrap();
        assert!(check_in(runtime.path(), "rx").is_ok() && check_in(runtime.path(), "tx").is_ok());
        // Of the kind that DPDK's is.
        let alive = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&alive, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&alive, 1).unwrap();
        let error = check_in(runtime.path(), "rx").unwrap_err().to_string();
        assert!(error.contains("the name rx") && error.contains("--name"), "{error}");
        drop(alive);
        assert!(path.exists() && check_in(runtime.path(), "rx").is_ok());
    }
}

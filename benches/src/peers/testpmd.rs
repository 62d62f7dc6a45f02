//! A pair of DPDK's own testpmd: the driver alone, without payload copies and without a CRC.

use super::place::{Driver, Place};
use super::{END, START, Setup, on_path};
use crate::bare::frame_len;
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde_json::json;
use std::process::Command;
use std::time::Duration;

/// The program, and the one that keeps its output from being held back until its end.
const PROGRAM: &str = "dpdk-testpmd";
const LINES: &str = "stdbuf";

/// Bytes of a buffer that holds a slot of a kernel ring, and the headroom.
const SLOT: u16 = 8192 + 256;

/// What says that packets are forwarded.
const FORWARDING: &str = "Logical Core";

/// Whether it is installed.
pub fn installed() -> bool {
    on_path(&[PROGRAM, LINES])
}

/// One side. Its first lcore only waits for commands and may run anywhere; the second forwards.
fn side(setup: &Setup, side: usize, device: &str, mode: &str, frame: usize) -> Command {
    let core = setup.cores[side];
    let cores = setup.cores.map(|c| c.to_string()).join(",");
    let device = dpdk::memif_device(device, setup.mtu);
    // The pool's buffers have the size of the shared ones, as in our own ports.
    let room = match &setup.place {
        // It wants whole slots of its ring to fit.
        Place::Network(network) if network.driver() == Driver::AfPacket => SLOT,
        _ => dpdk::Mempool::data_room_for_mtu(setup.mtu).unwrap_or(u16::MAX),
    };
    let mut command = setup.place.command(side, LINES);
    command.args(["-oL", PROGRAM, "--no-huge", "-m", "512", "--no-shconf", "--no-telemetry", "--no-pci"]);
    command
        .arg("--log-level=4")
        .arg(format!("--lcores=0@({cores}),1@{core}"))
        .arg(format!("--vdev={device}"));
    command.args(["--", "-i", "--auto-start", "--burst=32", "--total-num-mbufs=6144"]);
    command.args([format!("--mbuf-size={room}"), format!("--forward-mode={mode}")]);
    if let Some(peer) = setup.place.peer(side) {
        command.arg(format!("--eth-peer=0,{peer}"));
    }
    command.args(["--rxd=1024", "--txd=1024"]).arg(format!("--txpkts={frame}"));
    command
}

/// Packets per second of the size of our frames, as received.
pub fn throughput(setup: &Setup, size: usize, stop: &Stop) -> Result<Sample, Failure> {
    let [server, client] = setup.place.devices();
    let frame = frame_len(size);
    let mut rx = Child::start("testpmd's receiver", &mut side(setup, 0, &server, "rxonly", frame), stop)?;
    // Its port listens by now; it goes on when the peer has come.
    rx.expect("Checking link statuses", START)?;
    let mut tx = Child::start("testpmd's sender", &mut side(setup, 1, &client, "txonly", frame), stop)?;
    setup.place.join(stop)?;
    tx.expect(FORWARDING, START)?;
    rx.expect(FORWARDING, START)?;
    stop.sleep(Duration::from_secs_f64(setup.warmup))?;
    // The rate is over the time since the last such command.
    let mut rate = || {
        rx.say("show port stats 0")?;
        let line = rx.expect("Rx-pps:", END)?;
        rx_pps(&line).ok_or_else(|| Failure::Said(format!("testpmd's line {line:?} holds no rate")))
    };
    rate()?;
    stop.sleep(Duration::from_secs_f64(setup.seconds))?;
    let value = rate()?;
    // The receiver first, so that it does not poll memory that has been taken away; it may end badly all the same, and
    // that says nothing of the rate.
    rx.say("stop")?;
    rx.expect("Done", END)?;
    tx.say("stop")?;
    if value == 0.0 {
        return Err(Failure::Said("testpmd received nothing".into()));
    }
    Ok(Sample { value, detail: json!({ "frame": frame }) })
}

/// The number in `  Rx-pps:      911884          Rx-bps:    466884888`.
fn rx_pps(line: &str) -> Option<f64> {
    let (_, after) = line.split_once("Rx-pps:")?;
    after.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::test_setup;

    #[test]
    fn the_rate_is_read() {
        assert_eq!(rx_pps("  Rx-pps:       911884          Rx-bps:    466884888"), Some(911_884.0));
        assert_eq!(rx_pps("  Tx-pps:            0          Tx-bps:            0"), None);
        assert_eq!(rx_pps("  Rx-pps:"), None);
    }

    #[test]
    fn the_command_line_has_our_buffers_and_frames() {
        let command = side(&test_setup(), 1, "net_memif0,role=client,id=0,socket=x", "txonly", 1090);
        let line = format!("{command:?}");
        for part in [
            "--vdev=net_memif0,role=client,id=0,socket=x,bsize=4288,secret=bsize-4288",
            "--mbuf-size=4416",
            "--lcores=0@(2,3),1@3",
            "--txpkts=1090",
            "--forward-mode=txonly",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}

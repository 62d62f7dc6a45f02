//! Where the two sides of a pair meet.

use crate::child::{Failure, Stop};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testbed_net::{Namespace, Veth, veth};

/// A kind of port that has the kernel at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `net_af_packet`, over a veth pair between two namespaces.
    AfPacket,
    /// `net_af_xdp`, over the same.
    AfXdp,
    /// `net_tap`: what one tap receives, the kernel hands to the other.
    Tap,
}

impl Driver {
    /// In the order in which they are measured.
    pub const ALL: [Driver; 3] = [Driver::AfPacket, Driver::Tap, Driver::AfXdp];

    /// DPDK's name.
    pub fn name(self) -> &'static str {
        match self {
            Driver::AfPacket => "net_af_packet",
            Driver::AfXdp => "net_af_xdp",
            Driver::Tap => "net_tap",
        }
    }
}

/// Where the two sides of a pair meet. The receiver, or the side that answers, is the first.
#[derive(Clone, Debug)]
pub enum Place {
    /// Shared memory of two processes, at an abstract socket of a name of its own each time, so that nothing is left over and
    /// nobody else is met.
    Memif,
    /// A network of the kernel's.
    Network(Arc<Network>),
}

/// Namespaces of our own, gone with the last user.
#[derive(Debug)]
pub struct Network {
    driver: Driver,
    mtu: u16,
    sides: Vec<Namespace>,
}

impl Network {
    /// The kind of its ports.
    pub fn driver(&self) -> Driver {
        self.driver
    }
}

/// The interface of each side, in a namespace of its own or in the common one.
const INTERFACES: [&str; 2] = ["side0", "side1"];

/// Joins two taps.
const BRIDGE: &str = "joint";

/// For the interfaces of two processes to appear.
const APPEAR: Duration = Duration::from_secs(15);

impl Place {
    /// Namespaces with what the driver needs, for frames of an MTU.
    pub fn network(driver: Driver, mtu: u16) -> Place {
        let sides = match driver {
            // Its ports make their interfaces themselves, and those are joined, which needs them in one namespace.
            Driver::Tap => vec![Namespace::new()],
            Driver::AfPacket | Driver::AfXdp => {
                let sides = vec![Namespace::new(), Namespace::new()];
                let config = Veth { mtu: mtu.into(), ..Veth::default() };
                veth((&sides[0], INTERFACES[0]), (&sides[1], INTERFACES[1]), config);
                sides
            }
        };
        Place::Network(Arc::new(Network { driver, mtu, sides }))
    }

    /// The devices of the next pair, in DPDK's syntax.
    pub fn devices(&self) -> [String; 2] {
        match self {
            Place::Memif => {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let n = NEXT.fetch_add(1, Ordering::Relaxed);
                let pid = std::process::id();
                ["server", "client"]
                    .map(|role| format!("net_memif0,role={role},id=0,socket=spraywire-benches-{pid}-{n}"))
            }
            Place::Network(network) => INTERFACES.map(|interface| {
                // A frame must fit a slot of the ring that the kernel and the driver share: twice the default.
                let more = match network.driver {
                    Driver::AfPacket => ",blocksz=16384,framesz=8192,framecnt=512",
                    Driver::AfXdp | Driver::Tap => "",
                };
                format!("{}0,iface={interface}{more}", network.driver.name())
            }),
        }
    }

    /// The MAC address of the other side's interface, where that is there before its process. The kernel looks closer at frames that
    /// are for its own interface than at others, so whoever is compared has to send such.
    pub fn peer(&self, side: usize) -> Option<String> {
        let Place::Network(network) = self else { return None };
        let other = 1 - side.min(1);
        (network.driver != Driver::Tap).then(|| network.sides[other].mac(INTERFACES[other]))
    }

    /// A command of one side.
    pub fn command(&self, side: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match self {
            Place::Memif => Command::new(program),
            Place::Network(network) => network.sides[side.min(network.sides.len() - 1)].command(program),
        }
    }

    /// Joins the two sides, whose processes have started, where that is left to do.
    pub fn join(&self, stop: &Stop) -> Result<(), Failure> {
        let Place::Network(network) = self else { return Ok(()) };
        if network.driver != Driver::Tap {
            return Ok(());
        }
        let [common] = network.sides.as_slice() else { return Ok(()) };
        let start = Instant::now();
        while !INTERFACES.iter().all(|interface| common.flags(interface).is_some_and(is_started)) {
            if start.elapsed() > APPEAR {
                return Err(Failure::Said("the tap interfaces did not come up".into()));
            }
            stop.sleep(Duration::from_millis(20))?;
        }
        // A bridge keeps what is sent to an address of its members for itself, and a tap's interface has the address of the
        // port behind it: it gets another one.
        for (n, interface) in INTERFACES.iter().enumerate() {
            common.ip(&format!("link set {interface} address 02:00:00:00:01:0{n}"));
        }
        if common.has(BRIDGE) {
            common.delete(BRIDGE);
        }
        common.bridge(BRIDGE, network.mtu.into(), &INTERFACES);
        Ok(())
    }
}

/// Whether the port of a tap interface has started. While it does, DPDK brings the interface up, gives it the port's MAC address
/// once more, and only then has it take what is meant for groups or for all: what is set before does not last.
fn is_started(flags: u32) -> bool {
    // `IFF_UP`, and `IFF_PROMISC` or `IFF_ALLMULTI`, of `linux/if.h`.
    flags & 0x1 != 0 && flags & (0x100 | 0x200) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_is_joined_when_its_port_has_started() {
        // Up and for groups too, as ours; for all, as testpmd's; made, and only up.
        assert!(is_started(0x1203) && is_started(0x1103));
        assert!(!is_started(0x1002) && !is_started(0x1003) && !is_started(0x1200));
    }

    #[test]
    fn pairs_do_not_meet_each_other() {
        let [a, b] = Place::Memif.devices();
        let [c, _] = Place::Memif.devices();
        assert_eq!(a.replace("role=server", "role=client"), b);
        assert_ne!(a, c);
    }

    #[test]
    fn namespaces_hold_what_the_driver_needs() {
        if !testbed_net::allowed("namespaces_hold_what_the_driver_needs") {
            return;
        }
        let place = Place::network(Driver::AfPacket, 4200);
        for (side, device) in place.devices().iter().enumerate() {
            assert!(device.starts_with(&format!("net_af_packet0,iface={}", INTERFACES[side])), "{device}");
            let path = format!("/sys/class/net/{}/mtu", INTERFACES[side]);
            let output = place.command(side, "cat").arg(path).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "4200");
        }
    }
}

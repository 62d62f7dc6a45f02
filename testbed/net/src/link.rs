//! Pairs of interfaces.

use crate::Namespace;
use crate::namespace::run;
use std::process::Command;

/// What a pair is like.
#[derive(Clone, Copy, Debug)]
pub struct Veth {
    /// MTU of both ends, in bytes.
    pub mtu: u32,
    /// Queues in each direction of both ends.
    pub queues: u32,
}

impl Default for Veth {
    /// Ethernet's MTU and one queue.
    fn default() -> Veth {
        Veth { mtu: 1500, queues: 1 }
    }
}

/// Joins two namespaces by a pair of interfaces, each named as given, and brings both up. What enters one leaves the other.
/// The two may be in the same namespace.
///
/// # Panics
/// If it cannot be made, for example since a name is taken or longer than 15 bytes.
pub fn veth(a: (&Namespace, &str), b: (&Namespace, &str), config: Veth) {
    let Veth { mtu, queues } = config;
    let end = |(namespace, interface): (&Namespace, &str)| {
        format!("{interface} mtu {mtu} numtxqueues {queues} numrxqueues {queues} netns {}", namespace.name())
    };
    let line = format!("link add name {} type veth peer name {}", end(a), end(b));
    run(Command::new("ip").args(line.split_whitespace()));
    for (namespace, interface) in [a, b] {
        namespace.set_up(interface, true);
    }
}

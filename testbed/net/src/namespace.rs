//! Network namespaces.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How the names of all namespaces of this crate begin; the id of the process that made it follows, and a number.
const PREFIX: &str = "spw";

/// A network namespace of the kernel's, removed when dropped. Its loopback interface is up, and IPv6 of interfaces made in
/// it is off until one is given an IPv6 address, so that the kernel says nothing unasked.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new one, with nothing in it but loopback.
    ///
    /// # Panics
    /// If it cannot be made; see [`crate::allowed`].
    #[expect(clippy::new_without_default, reason = "it makes something outside of this process")]
    pub fn new() -> Namespace {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        SWEEP.call_once(sweep);
        let name = format!("{PREFIX}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(Command::new("ip").args(["netns", "add", &name]));
        let namespace = Namespace { name };
        namespace.ip("link set lo up");
        namespace.sysctl("net/ipv6/conf/default/disable_ipv6", "1");
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0");
        namespace
    }

    /// Its name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run in it. Its process id is the program's own: nothing stands in between.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs `ip` in it with these arguments and returns what it printed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn ip(&self, args: &str) -> String {
        run(Command::new("ip").args(["-n", &self.name]).args(args.split_whitespace()))
    }

    /// Runs a line of shell in it and returns what it printed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn sh(&self, line: &str) -> String {
        run(self.command("sh").args(["-c", line]))
    }

    /// Sets a variable below `/proc/sys`: `net/ipv4/ip_forward`.
    ///
    /// # Panics
    /// If there is none of that name, or it does not take the value.
    pub fn sysctl(&self, key: &str, value: &str) {
        self.sh(&format!("echo {value} > /proc/sys/{key}"));
    }

    /// Gives an interface an address, such as `10.0.0.1/24` or `fd77::1/64`.
    pub fn address(&self, interface: &str, address: &str) {
        if address.contains(':') {
            self.sysctl(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "0");
        }
        let flags = if address.contains(':') { "nodad" } else { "" };
        self.ip(&format!("address add {address} dev {interface} {flags}"));
    }

    /// Makes a bridge over interfaces of this namespace and brings it up. It forwards at once.
    pub fn bridge(&self, name: &str, mtu: u32, members: &[&str]) {
        self.ip(&format!("link add name {name} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"));
        for member in members {
            self.ip(&format!("link set {member} master {name}"));
        }
        self.ip(&format!("link set {name} mtu {mtu} up"));
    }

    /// Lets it forward packets between its interfaces, as a router does.
    pub fn forward(&self) {
        self.sysctl("net/ipv4/ip_forward", "1");
        self.sysctl("net/ipv6/conf/all/forwarding", "1");
    }

    /// Brings an interface up or down.
    pub fn set_up(&self, interface: &str, up: bool) {
        self.ip(&format!("link set {interface} {}", if up { "up" } else { "down" }));
    }

    /// Removes an interface; the other end of a pair goes with it.
    pub fn delete(&self, interface: &str) {
        self.ip(&format!("link delete {interface}"));
    }

    /// Whether an interface is there.
    pub fn has(&self, interface: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name, "link", "show", interface]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// What an interface is set to, as the bits `IFF_…` of `linux/if.h`; none if it is not there.
    pub fn flags(&self, interface: &str) -> Option<u32> {
        let path = format!("/sys/class/net/{interface}/flags");
        let output = self.command("cat").arg(path).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }

    /// MAC address of an interface.
    pub fn mac(&self, interface: &str) -> String {
        self.sh(&format!("cat /sys/class/net/{interface}/address")).trim().to_owned()
    }

    /// A counter of an interface by its name in `/sys/class/net/…/statistics`: `rx_packets`, `tx_dropped`, …
    pub fn counter(&self, interface: &str, counter: &str) -> u64 {
        let text = self.sh(&format!("cat /sys/class/net/{interface}/statistics/{counter}"));
        text.trim().parse().unwrap_or_else(|_| panic!("{counter} of {interface} is {text:?}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Removes a namespace; interfaces in it go once the last process in it is gone.
fn remove(name: &str) {
    let mut command = Command::new("ip");
    let _ = command.args(["netns", "delete", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Removes what processes left behind that were killed before they could: namespaces named after a process that is no more.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.split('-');
        let owner = (parts.next() == Some(PREFIX)).then(|| parts.next()?.parse::<u32>().ok()).flatten();
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&name);
        }
    }
}

/// Runs a command to its end and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}: {}", said.trim());
    String::from_utf8_lossy(&stdout).into_owned()
}

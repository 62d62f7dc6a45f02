//! From a failure to what the user can do about it: which capability or file is missing, which driver is not installed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::af_packet;
use crate::devargs::driver_of;

/// The mode that needs nothing: no root, no NIC, no hugepages.
const WORKS_ANYWHERE: &str =
    "Without privileges net_memif works, with no hugepages: net_memif0,role=server,id=0";

/// Capability bits of capabilities(7).
const CAP_NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const CAP_NET_RAW: (u32, &str) = (13, "CAP_NET_RAW");
const CAP_BPF: (u32, &str) = (39, "CAP_BPF");

/// What a device needs from the system, beyond DPDK itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Capabilities of the process: their bits and names, as in capabilities(7).
    pub capabilities: &'static [(u32, &'static str)],
    /// Files that must be open to reading and writing.
    pub files: &'static [&'static str],
}

impl Needs {
    /// What a device in DPDK's syntax needs, as far as it is known: `net_tap0,iface=dtap0`, a driver's name alone, or a PCI
    /// address.
    pub fn of(devargs: &str) -> Needs {
        let (capabilities, files) = needs(driver_of(devargs));
        Needs { capabilities, files }
    }

    /// The names of the capabilities that are not among `effective`, a mask as in `/proc/self/status`.
    pub fn missing(&self, effective: u64) -> Vec<&'static str> {
        self.capabilities
            .iter()
            .filter(|(bit, _)| effective & (1 << bit) == 0)
            .map(|(_, name)| *name)
            .collect()
    }
}

/// What a driver needs from the system.
fn needs(driver: &str) -> (&'static [(u32, &'static str)], &'static [&'static str]) {
    match driver {
        "net_af_packet" | "eth_af_packet" | "net_pcap" => (&[CAP_NET_RAW], &[]),
        "net_af_xdp" => (&[CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF], &[]),
        "net_tap" | "net_tun" => (&[CAP_NET_ADMIN], &["/dev/net/tun"]),
        "net_virtio_user" | "virtio_user" => (&[CAP_NET_ADMIN], &["/dev/vhost-net"]),
        "pci" => (&[], &["/dev/vfio/vfio"]),
        _ => (&[], &[]),
    }
}

/// Effective capabilities from the text of `/proc/self/status`; all of them if it does not say.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(u64::MAX)
}

/// Advice for a device that could not be attached.
pub(crate) fn device(devargs: &str, said: &str, driver_dir: Option<&Path>) -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    lack(devargs, effective(&status), &|path| usable(path))
        .or_else(|| af_packet::advice(devargs, said))
        .unwrap_or_else(|| advice(devargs, said, driver_dir))
}

/// Advice for a failed start of the environment.
pub(crate) fn start(huge: bool, said: &str) -> String {
    if !huge && said.contains("Cannot allocate memory") {
        "This process may have less memory than is asked for (ulimit -v, or its container's limit): raise that, or ask for less, as with -m 256 among DPDK's arguments".into()
    } else if huge {
        "If hugepages are the trouble (too few, or not this user's), run without them. ".to_owned()
            + WORKS_ANYWHERE
    } else {
        "Check the arguments given to DPDK; its log at debug level says more".into()
    }
}

/// What this process may not do and the driver must.
fn lack(devargs: &str, caps: u64, usable: &dyn Fn(&str) -> bool) -> Option<String> {
    let driver = driver_of(devargs);
    let needs = Needs::of(devargs);
    let missing = needs.missing(caps);
    let closed: Vec<&str> = needs.files.iter().filter(|file| !usable(file)).copied().collect();
    if !missing.is_empty() {
        let list = missing.join(" and ");
        return Some(format!(
            "This process lacks {list}, which {driver} needs: run as root, or give the program the capability (setcap). {WORKS_ANYWHERE}"
        ));
    }
    (!closed.is_empty()).then(|| {
        let list = closed.join(" and ");
        format!(
            "This process cannot open {list}, which {driver} needs: change its permission, or run as root. {WORKS_ANYWHERE}"
        )
    })
}

fn advice(devargs: &str, said: &str, driver_dir: Option<&Path>) -> String {
    let driver = driver_of(devargs);
    if driver == "pci" {
        return "Is the NIC bound to vfio-pci (dpdk-devbind.py --status), and was it allowed at start?"
            .into();
    }
    match driver_dir {
        Some(dir) if !installed(dir, driver) => format!(
            "No driver called {driver} is in {}. Check the spelling; net_memif, net_af_packet, net_af_xdp, net_tap, net_ring and net_null are usual",
            dir.display()
        ),
        _ if driver == "net_memif" && said.contains("Invalid buffer size") => {
            "A buffer, which holds a whole frame, has 65535 bytes at the most: a smaller MTU, or bsize=, fits"
                .into()
        }
        _ if driver == "net_memif" && said.contains("Unknown role") => "The role is server or client".into(),
        _ if driver == "net_memif" => {
            "Is another process using the same role, id and socket, or is a socket file left over?".into()
        }
        _ => format!("Check the options of {driver}; DPDK's log at debug level says more"),
    }
}

fn installed(dir: &Path, driver: &str) -> bool {
    // Some drivers answer to an older name, so look for any library that could be meant.
    let tail = driver.split_once('_').map_or(driver, |(_, tail)| tail);
    !tail.is_empty() && PathBuf::from(dir).join(format!("librte_net_{tail}.so")).exists()
        || fs::read_dir(dir).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|e| e.file_name().to_string_lossy().starts_with(&format!("librte_{driver}.")))
            })
        })
}

fn usable(path: &str) -> bool {
    fs::OpenOptions::new().read(true).write(true).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read() {
        assert_eq!(effective("Name:\tx\nCapPrm:\t0\nCapEff:\t0000000000003000\n"), 0x3000);
        assert_eq!(effective("nothing"), u64::MAX);
    }

    #[test]
    fn the_missing_capability_is_named() {
        let text = lack("net_af_packet0,iface=lo", 0, &|_| true).unwrap();
        assert!(text.contains("lacks CAP_NET_RAW") && text.contains("net_memif0"), "{text}");
        let text = lack("net_tap0", 1 << 13, &|_| true).unwrap();
        assert!(text.contains("lacks CAP_NET_ADMIN") && text.contains("net_memif0"), "{text}");
        let text = lack("net_af_xdp0", 1 << 13, &|_| true).unwrap();
        assert!(text.contains("lacks CAP_NET_ADMIN and CAP_BPF"), "{text}");
    }

    #[test]
    fn too_little_memory_is_told_from_other_failures() {
        let said = "EAL: Cannot get a virtual area: Cannot allocate memory";
        assert!(start(false, said).contains("-m 256"));
        assert!(start(true, said).contains("hugepages"));
        assert!(!start(false, "EAL: FATAL: Invalid 'command line' arguments.").contains("-m 256"));
    }

    #[test]
    fn what_memif_refuses_has_its_own_advice() {
        let said = |text| advice("net_memif0,role=server", text, None);
        assert!(said("memif_set_bs(): Invalid buffer size: 65600.").contains("smaller MTU"));
        assert!(said("memif_set_role(): Unknown role: foo.").contains("server or client"));
        assert!(said("Failed to setup socket x: Address already in use").contains("another process"));
    }

    #[test]
    fn the_closed_file_is_named() {
        let text = lack("net_tap0", u64::MAX, &|path| path != "/dev/net/tun").unwrap();
        assert!(text.contains("cannot open /dev/net/tun"), "{text}");
        let text = lack("0000:03:00.0", u64::MAX, &|_| false).unwrap();
        assert!(text.contains("/dev/vfio/vfio"), "{text}");
    }

    #[test]
    fn an_unknown_driver_is_said_to_be_unknown() {
        let text = advice("net_nosuch0", "", Some(Path::new("/does/not/exist")));
        assert!(text.contains("No driver called net_nosuch is in /does/not/exist"), "{text}");
    }
}

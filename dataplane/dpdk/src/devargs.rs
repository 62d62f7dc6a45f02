//! Arguments of virtual devices: `net_memif0,role=client,id=0`.

use crate::{af_packet, memif};

/// The driver part of a device's name: `net_memif0,role=server` gives `net_memif`; a PCI address gives `pci`.
pub fn driver_of(devargs: &str) -> &str {
    let device = devargs.split(',').next().unwrap_or_default();
    let device = device.strip_prefix("vdev:").unwrap_or(device);
    if device.contains(':') {
        return "pci";
    }
    device.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// The value of an option; of the last, if it was given several times, as drivers have it.
pub(crate) fn option<'a>(devargs: &'a str, name: &str) -> Option<&'a str> {
    devargs
        .split(',')
        .skip(1)
        .filter_map(|pair| pair.split_once('='))
        .filter(|(key, _)| *key == name)
        .last()
        .map(|(_, value)| value)
}

/// The number that an option has, or `default` if it has none.
pub(crate) fn number(devargs: &str, name: &str, default: u32) -> u32 {
    option(devargs, name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Completes a device's arguments for a port of that MTU, where its driver would otherwise have buffers too small for its
/// frames: see [`crate::memif_device`] for `net_memif`; `net_af_packet` gets frames and blocks of its rings. What the
/// arguments say already stays, and other devices come back unchanged.
pub fn complete_device(devargs: &str, mtu: u16) -> String {
    af_packet::af_packet_device(&memif::memif_device(devargs, mtu), mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_told_from_devices() {
        assert_eq!(driver_of("net_memif0,role=server,id=0"), "net_memif");
        assert_eq!(driver_of("net_af_packet12,iface=eth0"), "net_af_packet");
        assert_eq!(driver_of("0000:03:00.0"), "pci");
        assert_eq!(driver_of("net_tap"), "net_tap");
    }

    #[test]
    fn options_are_found() {
        let device = "net_x0,a=1,b=x,a=2";
        assert_eq!(
            (option(device, "a"), option(device, "b"), option(device, "c")),
            (Some("2"), Some("x"), None)
        );
        assert_eq!((number(device, "a", 7), number(device, "b", 7), number(device, "c", 7)), (2, 7, 7));
        assert_eq!(option("a=1", "a"), None);
    }

    #[test]
    fn each_driver_is_completed_in_its_own_way() {
        assert!(complete_device("net_memif0", 1500).contains(",bsize=2048,secret=bsize-2048"));
        assert!(complete_device("net_af_packet0,iface=e", 4200).contains(",framesz=8192"));
        assert_eq!(complete_device("net_tap0,iface=e", 4200), "net_tap0,iface=e");
    }
}

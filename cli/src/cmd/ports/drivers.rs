//! DPDK's network drivers as they are installed.

use std::collections::BTreeSet;
use std::path::Path;

/// What the virtual devices that need no NIC are good for, with a `--port` to begin with.
const VIRTUAL: [(&str, &str, &str); 8] = [
    ("memif", "shared memory between two processes of this machine", "net_memif0,role=server,id=0"),
    ("af_packet", "an interface of the kernel, by way of a packet socket", "net_af_packet0,iface=NAME"),
    ("af_xdp", "an interface of the kernel, by way of an AF_XDP socket", "net_af_xdp0,iface=NAME"),
    ("tap", "a new interface, with the kernel at the other end", "net_tap0,iface=NAME"),
    ("pcap", "packets from a file or an interface, to a file", "net_pcap0,rx_pcap=FILE,tx_pcap=FILE"),
    ("ring", "what is sent comes back, within the process", "net_ring0"),
    ("null", "empty packets without end, and a place to send them to", "net_null0"),
    ("virtio", "a virtual machine's NIC, or vhost by virtio_user", "net_virtio_user0,path=/dev/vhost-net"),
];

/// The names of the network drivers in a folder of shared libraries: `af_packet`, `memif`, …
pub fn net(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |entry: std::fs::DirEntry| {
        let file = entry.file_name().to_string_lossy().into_owned();
        let name = file.strip_prefix("librte_net_")?.split(".so").next()?.to_owned();
        file.contains(".so").then_some(name)
    };
    entries.filter_map(name).collect::<BTreeSet<_>>().into_iter().collect()
}

/// What the virtual driver of that name is good for, and a `--port` to begin with.
pub fn virtual_device(name: &str) -> Option<(&'static str, &'static str)> {
    VIRTUAL.iter().find(|(driver, ..)| *driver == name).map(|(_, what, port)| (*what, *port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_named_once_whatever_its_files() {
        let folder = tempfile::tempdir().unwrap();
        for file in
            ["librte_net_tap.so", "librte_net_tap.so.23.0", "librte_net_ice.so.23", "librte_bus_pci.so.23"]
        {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(net(folder.path()), ["ice", "tap"]);
        assert!(net(Path::new("/does/not/exist")).is_empty());
        assert_eq!(virtual_device("tap").unwrap().1, "net_tap0,iface=NAME");
        assert_eq!(virtual_device("ice"), None);
    }
}

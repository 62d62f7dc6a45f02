//! Drivers of virtual devices that must be told when they are made how many queues they will have.

use crate::devargs::driver_of;

/// Completes the arguments of a virtual device for `queues` queue pairs, where its driver needs that; what the arguments say
/// already stays. Other devices come back unchanged: they have as many queues as are asked for when the port starts.
///
/// The secret that [`crate::memif_device`] gave to a memif port gets the number too, so that sides with different numbers do
/// not connect: a queue without a ring at the other side would work on the first one's ring, behind the back of whoever polls
/// that.
pub fn queues_device(devargs: &str, queues: u16) -> String {
    let option = match driver_of(devargs) {
        "net_memif" => return if queues < 2 { devargs.to_owned() } else { memif(devargs, queues) },
        // A fanout group of packet sockets, which the kernel fills by its own hash of addresses and ports.
        "net_af_packet" => "qpairs",
        "net_af_xdp" => "queue_count",
        _ => return devargs.to_owned(),
    };
    let said = devargs.split(',').skip(1).any(|pair| pair.split('=').next() == Some(option));
    if said || queues < 2 { devargs.to_owned() } else { format!("{devargs},{option}={queues}") }
}

fn memif(devargs: &str, queues: u16) -> String {
    let ours = |word: &str| word.strip_prefix("secret=bsize-").is_some_and(|n| n.parse::<u32>().is_ok());
    let word = |word: &str| if ours(word) { format!("{word}-queues-{queues}") } else { word.to_owned() };
    devargs.split(',').map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_hear_of_their_queues() {
        let device = "net_af_packet0,iface=eth1";
        assert_eq!(queues_device(device, 1), device);
        assert_eq!(queues_device(device, 4), format!("{device},qpairs=4"));
        assert_eq!(
            queues_device("net_af_packet0,iface=eth1,qpairs=2", 4),
            "net_af_packet0,iface=eth1,qpairs=2"
        );
        assert_eq!(queues_device("net_af_xdp0,iface=eth1", 2), "net_af_xdp0,iface=eth1,queue_count=2");
        assert_eq!(queues_device("net_memif0,id=0,secret=mine", 2), "net_memif0,id=0,secret=mine");
        let ours = crate::memif_device("net_memif0,id=0", 1500);
        assert_eq!(queues_device(&ours, 1), ours);
        assert_eq!(
            queues_device(&ours, 64),
            "net_memif0,id=0,bsize=2048,secret=bsize-2048-queues-64,rsize=7",
            "at most 24 characters (ETH_MEMIF_SECRET_SIZE)"
        );
    }
}

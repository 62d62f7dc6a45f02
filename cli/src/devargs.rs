//! Arguments of virtual devices whose drivers drop them all, without a word, where one is unknown.

use crate::error::Error;
use roce_proto::wire::ethernet::MacAddr;

/// Drivers, and the keys that DPDK documents for each.
const KNOWN: [(&str, &[&str]); 4] = [
    (
        "net_memif",
        &[
            "id",
            "role",
            "bsize",
            "rsize",
            "socket",
            "socket-abstract",
            "owner-uid",
            "owner-gid",
            "mac",
            "secret",
            "zero-copy",
            "pkt_buffer_size",
        ],
    ),
    ("net_ring", &["nodeaction", "internal"]),
    ("net_null", &["size", "copy", "no-rx"]),
    ("net_af_packet", &["iface", "qpairs", "blocksz", "framesz", "framecnt", "qdisc_bypass", "fanout_mode"]),
];

/// Refuses a key that the driver of `device` does not have; other drivers are left to themselves.
///
/// # Errors
/// The key, and those that there are.
pub fn check(device: &str) -> Result<(), Error> {
    let (name, args) = device.split_once(',').unwrap_or((device, ""));
    let driver = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let Some((_, known)) = KNOWN.iter().find(|(known, _)| *known == driver) else { return Ok(()) };
    let keys = args.split(',').filter(|arg| !arg.is_empty()).map(|arg| arg.split('=').next().unwrap_or(arg));
    if driver == "net_memif" {
        check_values(args)?;
    }
    match keys.into_iter().find(|key| !known.contains(key)) {
        Some(key) => Err(Error::usage(format_args!(
            "{driver} has no argument `{key}`, and would drop the others with it"
        ))
        .hint(format_args!("it has {}", known.join(", ")))),
        None => Ok(()),
    }
}

/// Refuses values that net_memif takes for others.
fn check_values(args: &str) -> Result<(), Error> {
    for (key, value) in args.split(',').filter_map(|arg| arg.split_once('=')) {
        let wanted = match key {
            "id" if value.parse::<u32>().is_err() => "a number from 0 to 4294967295",
            "mac" if value.parse::<MacAddr>().is_err() => "a MAC address: 02:00:00:00:00:01",
            _ => continue,
        };
        return Err(Error::usage(format_args!("net_memif cannot have {key}={value}"))
            .hint(format_args!("{key} is {wanted}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_named() {
        for good in [
            "net_memif0",
            "net_memif0,role=client,id=0,socket=x,socket-abstract=no,mac=02:00:00:00:00:01",
            "net_af_packet3,iface=eth1,qpairs=2",
            "net_null0,copy=1",
            "net_ring0",
            "net_tap0,anything=1",
            "net_memifish0,anything=1",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, key) in [
            ("net_memif0,role=client,sokket=x", "net_memif has no argument `sokket`"),
            ("net_af_packet0,iface=eth1,queues=2", "net_af_packet has no argument `queues`"),
            ("net_null0,siz", "net_null has no argument `siz`"),
            ("net_memif0,id=-1", "net_memif cannot have id=-1"),
            ("net_memif0,role=client,id=4294967296", "cannot have id=4294967296"),
            ("net_memif0,mac=zz,id=0", "cannot have mac=zz"),
            ("net_ring,role=x", "net_ring has no argument `role`"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.message().contains(key) && error.exit == crate::error::Exit::Usage, "{error}");
        }
    }
}

//! Drivers that need a privilege: with it, the kernel sees the MTU that was set; without it, the user is told which one is
//! missing and what works instead.

mod common;

use std::env;
use std::fs;

use dpdk::{Burst, Eal, EalConfig, HEADROOM, HugePages, LogLevel, Mempool, Port, PortConfig, PortError};

const AGAIN: &str = "DPDK_TEST_UNPRIVILEGED";

#[test]
fn with_and_without() {
    let config =
        EalConfig { hugepages: HugePages::Auto, log_level: Some(LogLevel::Notice), ..EalConfig::default() };
    if env::var_os(AGAIN).is_some() {
        let eal = Eal::init(&EalConfig { extra: vec!["--no-pci".into()], ..config }).unwrap();
        without(&eal);
        eal.shutdown().unwrap();
        return;
    }
    let copy = common::Copy::new("privileges");
    let status = copy.unprivileged("with_and_without").env(AGAIN, "1").status().unwrap();
    assert!(status.success(), "the unprivileged run's own checks");

    let eal = Eal::init(&EalConfig { extra: vec!["--no-pci".into()], ..config }).unwrap();
    if common::is_root() && fs::metadata("/dev/net/tun").is_ok() {
        with(&eal);
    } else {
        without(&eal);
    }
    eal.shutdown().unwrap();
}

fn without(eal: &Eal) {
    for (device, capability) in
        [("net_tap0,iface=spwtap0", "CAP_NET_ADMIN"), ("net_af_packet0,iface=lo", "CAP_NET_RAW")]
    {
        let error = eal.attach(device).unwrap_err();
        assert!(matches!(error, PortError::Attach { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(capability), "{capability} in: {text}");
        assert!(text.contains("net_memif0,role=server,id=0"), "a mode that works, in: {text}");
    }
    // And it does work.
    let id = eal.attach("net_memif0,role=server,id=0").unwrap();
    let pool = Mempool::new(eal, "memif", 255, 0, 2048 + HEADROOM, None).unwrap();
    let (port, mut rx, _tx) =
        Port::start(eal, id, &PortConfig::default(), std::slice::from_ref(&pool)).unwrap();
    assert!(!port.link().unwrap().up);
    assert_eq!(rx[0].rx_burst(&mut Burst::<32>::new()), 0);
}

fn with(eal: &Eal) {
    let iface = format!("spw{}", std::process::id() % 1_000_000);
    let id = eal.attach(&format!("net_tap0,iface={iface}")).unwrap();
    let kernel =
        |file: &str| fs::read_to_string(format!("/sys/class/net/{iface}/{file}")).unwrap().trim().to_owned();
    let info = eal.port(id).unwrap();
    assert!(info.mtu_enforced);
    assert_eq!(eal.find(&info.mac.to_string()), Ok(id));

    let room = Mempool::data_room_for_mtu(1500).unwrap();
    let pool = Mempool::new(eal, "tap", 2047, 64, room, None).unwrap();
    let small = Mempool::new(eal, "small", 255, 0, 1280 + HEADROOM, None).unwrap();
    let start = |mtu| {
        let config = PortConfig { mtu, ..PortConfig::default() };
        Port::start(eal, id, &config, std::slice::from_ref(&pool)).map(|(port, _, _)| port.mtu())
    };
    for mtu in [1400, 1280, 1500] {
        assert_eq!(start(Some(mtu)), Ok(mtu));
        assert_eq!(kernel("mtu"), mtu.to_string(), "the kernel's own view");
        assert_eq!(eal.port(id).unwrap().mtu, mtu);
        assert_eq!(start(None), Ok(mtu), "the present one stays");
    }
    // More than the driver can, and less than the least: refused with its own numbers, and nothing changed.
    let (min, max) = (info.min_mtu, info.max_mtu);
    assert!((1500..u16::MAX).contains(&max), "{max}");
    assert_eq!(start(Some(max + 1)), Err(PortError::Mtu { port: id, mtu: max + 1, min, max }));
    assert_eq!(start(Some(min - 1)), Err(PortError::Mtu { port: id, mtu: min - 1, min, max }));
    let config = PortConfig { mtu: Some(1500), ..PortConfig::default() };
    let error = Port::start(eal, id, &config, std::slice::from_ref(&small)).map(|_| ()).unwrap_err();
    assert!(matches!(error, PortError::Room { mtu: 1500, need: 1526, room: 1280, .. }), "{error:?}");
    assert_eq!(kernel("mtu"), "1500");
    // This driver keeps its receive buffers while it is stopped.
    drop(small);
    eal.detach(id).unwrap();
    assert_eq!(pool.in_use(), 0);
    assert!(fs::metadata(format!("/sys/class/net/{iface}")).is_err(), "the interface is gone");
}

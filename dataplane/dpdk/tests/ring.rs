//! A ring port hands to its receive queue what its transmit queue took: order, refusal, and MTU can be checked exactly.

use dpdk::{
    Burst, Eal, EalConfig, HEADROOM, HugePages, Mempool, Port, PortConfig, PortError, RxQueue, TxQueue,
    frame_room,
};

#[test]
fn ring_port() {
    let config =
        EalConfig { hugepages: HugePages::Off, vdevs: vec!["net_ring0".into()], ..EalConfig::default() };
    let eal = Eal::init(&config).unwrap();
    let id = eal.find("net_ring0").unwrap();

    mtu(&eal);

    // Larger than the port's ring of 1024.
    let pool = Mempool::new(&eal, "ring", 2047, 64, Mempool::data_room_for_mtu(1500).unwrap(), None).unwrap();
    let config = PortConfig { mtu: Some(1500), ..PortConfig::default() };
    let (port, mut rx, mut tx) = Port::start(&eal, id, &config, std::slice::from_ref(&pool)).unwrap();
    assert!(port.wait_link(std::time::Duration::from_secs(1)).unwrap().up);
    in_order(&pool, &mut rx[0], &mut tx[0]);
    chained(&pool, &mut rx[0], &mut tx[0]);
    full(&pool, &mut rx[0], &mut tx[0]);
    exhausted(&pool, &mut rx[0], &mut tx[0]);
    drop((port, rx, tx));
    assert_eq!(pool.in_use(), 0);
    drop(pool);
    eal.shutdown().unwrap();
}

fn numbered<const N: usize>(pool: &Mempool, n: u32) -> Burst<N> {
    let mut burst = Burst::new();
    assert!(pool.alloc_bulk(&mut burst, n as usize));
    for (i, packet) in (0u32..).zip(&mut burst) {
        packet.append(64).unwrap()[..4].copy_from_slice(&i.to_be_bytes());
    }
    burst
}

fn number(packet: &dpdk::Mbuf) -> u32 {
    u32::from_be_bytes(packet.data()[..4].try_into().unwrap())
}

fn in_order(pool: &Mempool, rx: &mut RxQueue, tx: &mut TxQueue) {
    let mut burst = numbered::<64>(pool, 40);
    assert_eq!(tx.tx_burst(&mut burst), 40);
    assert!(burst.is_empty());
    assert_eq!(pool.in_use(), 40);
    let mut first = Burst::<16>::new();
    assert_eq!(rx.rx_burst(&mut first), 16);
    let mut rest = Burst::<64>::new();
    assert_eq!(rx.rx_burst(&mut rest), 24);
    let got: Vec<u32> = first.iter().chain(&rest).map(number).collect();
    assert_eq!(got, (0..40).collect::<Vec<_>>());
    drop((first, rest));
    assert_eq!(pool.in_use(), 0);
}

fn chained(pool: &Mempool, rx: &mut RxQueue, tx: &mut TxQueue) {
    let mut burst = numbered::<4>(pool, 1);
    let mut tail = pool.alloc().unwrap();
    tail.append(1000).unwrap().fill(5);
    burst.as_mut_slice()[0].chain(tail).unwrap();
    assert_eq!(tx.tx_burst(&mut burst), 1);
    assert_eq!(rx.rx_burst(&mut burst), 1);
    let packet = burst.pop_front().unwrap();
    assert_eq!((packet.pkt_len(), packet.segment_count(), pool.in_use()), (1064, 2, 2));
    let mut out = vec![0; 1064];
    assert_eq!(packet.copy_to_slice(0, &mut out), 1064);
    assert!(out[64..].iter().all(|byte| *byte == 5));
    drop(packet);
    assert_eq!(pool.in_use(), 0);
}

/// What the ring does not take stays with the caller, in order, and goes out later.
fn full(pool: &Mempool, rx: &mut RxQueue, tx: &mut TxQueue) {
    let mut burst = numbered::<1500>(pool, 1500);
    let taken = tx.tx_burst(&mut burst);
    assert!(taken > 0 && taken < 1500, "{taken}");
    assert_eq!(burst.len(), 1500 - taken);
    let left: Vec<u32> = burst.iter().map(number).collect();
    assert_eq!(left, (taken as u32..1500).collect::<Vec<_>>());
    assert_eq!(tx.tx_burst(&mut burst), 0, "still full");
    assert_eq!(burst.len(), 1500 - taken);

    let mut received = Burst::<64>::new();
    let mut next = 0;
    while next < 1500 {
        rx.rx_burst(&mut received);
        for packet in received.drain() {
            assert_eq!(number(&packet), next);
            next += 1;
        }
        tx.tx_burst(&mut burst);
    }
    assert!(burst.is_empty());
    assert_eq!(pool.in_use(), 0);
}

/// A sender that finds the pool empty goes on when packets come home.
fn exhausted(pool: &Mempool, rx: &mut RxQueue, tx: &mut TxQueue) {
    let mut held = Burst::<2047>::new();
    assert!(pool.alloc_bulk(&mut held, 2047));
    let mut burst = Burst::<32>::new();
    assert!(!pool.alloc_bulk(&mut burst, 1));
    assert_eq!(tx.tx_burst(&mut burst), 0);
    assert_eq!(rx.rx_burst(&mut burst), 0);
    drop(held);
    let mut burst = numbered::<32>(pool, 32);
    assert_eq!(tx.tx_burst(&mut burst), 32);
    assert_eq!(rx.rx_burst(&mut burst), 32);
    burst.clear();
    assert_eq!(pool.in_use(), 0);
}

fn mtu(eal: &Eal) {
    let id = eal.find("net_ring0").unwrap();
    let pool = Mempool::new(eal, "small", 255, 0, 2048 + HEADROOM, None).unwrap();
    let start = |mtu, scatter| {
        let config = PortConfig { mtu: Some(mtu), scatter, ..PortConfig::default() };
        Port::start(eal, id, &config, std::slice::from_ref(&pool)).map(|(port, _, _)| port.mtu())
    };
    assert_eq!(start(1500, false), Ok(1500));
    assert_eq!(start(2048 - 26, false), Ok(2022));
    // One byte more than fits, refused with the numbers.
    let error = start(2023, false).unwrap_err();
    assert_eq!(error, PortError::Room { mtu: 2023, need: 2049, room: 2048, can_scatter: true });
    let text = error.to_string();
    for number in ["2023", "2049", "2048", "lower the MTU to 2022"] {
        assert!(text.contains(number), "{number} in {text}");
    }
    assert_eq!(start(4200, true), Ok(4200));
    let error = start(20, false).unwrap_err();
    assert!(matches!(error, PortError::Mtu { mtu: 20, .. }), "{error:?}");
    assert_eq!(Mempool::data_room_for_mtu(4096), Some(4160 + 128), "4096 + 26 in whole lines of 64");
    assert_eq!(Mempool::data_room_for_mtu(1500), Some(2048 + 128));
    assert!(u32::from(Mempool::data_room_for_mtu(9000).unwrap() - HEADROOM) >= frame_room(9000));
    assert_eq!(Mempool::data_room_for_mtu(65500), None);
}

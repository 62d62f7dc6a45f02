//! The life of the environment and of a pool, on a port that makes packets up and throws them away.

use std::thread;

use dpdk::{
    Burst, Eal, EalConfig, EalError, HEADROOM, HugePages, Mempool, MempoolError, Port, PortConfig, PortError,
};

/// One test, since a process starts DPDK once.
#[test]
fn null_port() {
    let config = EalConfig {
        hugepages: HugePages::Off,
        vdevs: vec!["net_null0,size=300".into()],
        ..EalConfig::default()
    };
    let before = affinity();
    let eal = Eal::init(&config).unwrap();
    assert_eq!(affinity(), before, "the thread that starts DPDK is not pinned");
    assert!(Eal::version().starts_with("DPDK "), "{}", Eal::version());
    assert!(eal.args().contains(&"--no-huge".to_owned()), "{:?}", eal.args());
    assert!(!eal.hugepages());
    assert_eq!(Eal::init(&config).unwrap_err(), EalError::AlreadyInitialised);

    ports(&eal);
    pools(&eal);
    traffic(&eal);
    threads(&eal);
    outliving(&eal);
    shutdown(eal);
    assert_eq!(Eal::init(&config).unwrap_err(), EalError::AlreadyInitialised);
}

fn affinity() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap().to_owned()
}

fn ports(eal: &Eal) {
    let ports = eal.ports();
    assert_eq!(ports.len(), 1);
    let info = &ports[0];
    assert_eq!(
        (info.name.as_str(), info.driver.as_str(), info.bus.as_str()),
        ("net_null0", "net_null", "vdev")
    );
    assert!(!info.mtu_enforced);
    assert_eq!(eal.find("net_null0"), Ok(info.id));
    assert_eq!(eal.find(&info.mac.to_string()), Ok(info.id));
    assert_eq!(eal.find(&info.mac.to_string().to_uppercase()), Ok(info.id));
    let error = eal.find("net_null7").unwrap_err();
    assert!(matches!(error, PortError::NotFound { .. }));
    let text = error.to_string();
    assert!(
        text.contains("net_null7") && text.contains("net_null0") && text.contains(&info.mac.to_string()),
        "{text}"
    );

    let second = eal.attach("net_null1").unwrap();
    assert_eq!(eal.find("net_null1"), Ok(second));
    assert_eq!(eal.ports().len(), 2);
    eal.detach(second).unwrap();
    assert_eq!(eal.ports().len(), 1);
    assert_eq!(eal.detach(second), Err(PortError::Gone(second)));
}

fn pools(eal: &Eal) {
    let empty = Mempool::new(eal, "none", 0, 0, 2048, None).unwrap_err();
    assert_eq!(empty, MempoolError::Empty { data_room: 2048, headroom: HEADROOM });
    let large = Mempool::new(eal, "cache", 99, 100, 2048, None).unwrap_err();
    assert_eq!(large, MempoolError::Cache { cache: 100, count: 99, max: 66 });
    let huge = Mempool::new(eal, "huge", 4_000_000, 0, 9000, None).unwrap_err();
    assert!(matches!(huge, MempoolError::Create { errno: 12, .. }), "{huge:?}");
    assert!(huge.to_string().contains("memory"), "{huge}");

    let pool = Mempool::new(eal, "pool", 255, 32, 2048 + HEADROOM, None).unwrap();
    assert_eq!((pool.count(), pool.available(), pool.in_use()), (255, 255, 0));

    // Exhaustion gives nothing, and takes nothing.
    let mut burst = Burst::<255>::new();
    assert!(pool.alloc_bulk(&mut burst, 200));
    let mut more = Burst::<64>::new();
    assert!(!pool.alloc_bulk(&mut more, 56));
    assert_eq!((more.len(), pool.in_use()), (0, 200));
    assert!(!pool.alloc_bulk(&mut more, 65), "more than the burst holds");
    assert!(pool.alloc_bulk(&mut more, 55));
    assert!(pool.alloc().is_none());
    assert_eq!(pool.available(), 0);
    drop(burst);
    assert_eq!(pool.in_use(), 55);
    more.clear();
    assert_eq!(pool.in_use(), 0);

    for _ in 0..10_000 {
        assert!(pool.alloc_bulk(&mut more, 64));
        assert_eq!(more.len(), 64);
        more.clear();
        let one = pool.alloc().unwrap();
        assert_eq!((one.pkt_len(), one.headroom(), one.segment_count()), (0, usize::from(HEADROOM), 1));
    }
    assert_eq!(pool.available(), 255);

    mbufs(&pool);
    chains(&pool);
    bursts(&pool);
    assert_eq!(pool.available(), 255);
}

fn mbufs(pool: &Mempool) {
    let mut packet = pool.alloc().unwrap();
    assert_eq!(packet.tailroom(), 2048);
    packet.append(100).unwrap().fill(7);
    packet.prepend(14).unwrap().fill(9);
    assert_eq!((packet.pkt_len(), packet.data_len(), packet.headroom()), (114, 114, 128 - 14));
    assert_eq!((&packet.data()[..14], &packet.data()[14..]), (&[9; 14][..], &[7; 100][..]));
    assert!(packet.append(2048 - 100 + 1).is_none());
    assert!(packet.prepend(115).is_none());
    assert!(!packet.trim(115) && !packet.adj(115));
    assert_eq!(packet.pkt_len(), 114);
    assert!(packet.adj(10) && packet.trim(90));
    assert_eq!(packet.data(), [9, 9, 9, 9, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
    packet.data_mut()[0] = 1;
    assert_eq!(packet.segments().next().unwrap()[0], 1);
    assert_eq!(packet.append(2048 - 10).unwrap().len(), 2038);
    assert_eq!(packet.tailroom(), 0);
    assert_eq!(packet.rss_hash(), None);
}

fn chains(pool: &Mempool) {
    let home = pool.available();
    let mut packet = pool.alloc().unwrap();
    for (len, byte) in [(3, 1u8), (4, 2), (5, 3)] {
        if byte == 1 {
            packet.append(len).unwrap().fill(byte);
        } else {
            let mut next = pool.alloc().unwrap();
            next.append(len).unwrap().fill(byte);
            packet.chain(next).unwrap();
        }
    }
    assert_eq!((packet.pkt_len(), packet.data_len(), packet.segment_count()), (12, 3, 3));
    assert!(!packet.is_contiguous());
    packet.append(1).unwrap()[0] = 4;
    let lengths: Vec<usize> = packet.segments().map(<[u8]>::len).collect();
    assert_eq!(lengths, [3, 4, 6]);
    let mut out = [0; 20];
    assert_eq!(packet.copy_to_slice(0, &mut out), 13);
    assert_eq!(out[..13], [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4]);
    assert_eq!(packet.copy_to_slice(2, &mut out[..6]), 6);
    assert_eq!(out[..6], [1, 2, 2, 2, 2, 3]);
    assert_eq!(packet.copy_to_slice(13, &mut out), 0);
    assert!(packet.trim(6) && !packet.trim(1), "only within the last segment");
    assert_eq!(packet.pkt_len(), 7);
    assert_eq!(home - pool.available(), 3);
    drop(packet);
    assert_eq!(pool.available(), home, "the whole chain came back");

    // Chains of chains, freed in bulk.
    let mut burst = Burst::<8>::new();
    for _ in 0..8 {
        let (mut a, mut b) = (pool.alloc().unwrap(), pool.alloc().unwrap());
        b.chain(pool.alloc().unwrap()).unwrap();
        a.chain(b).unwrap();
        assert_eq!((a.segment_count(), a.segments().count()), (3, 3));
        burst.push(a).unwrap();
    }
    assert_eq!(home - pool.available(), 24);
    burst.clear();
    assert_eq!(pool.available(), home);
}

fn bursts(pool: &Mempool) {
    let packet = |n: u8| {
        let mut packet = pool.alloc().unwrap();
        packet.append(1).unwrap()[0] = n;
        packet
    };
    let contents = |burst: &Burst<4>| burst.iter().map(|packet| packet.data()[0]).collect::<Vec<_>>();
    let mut burst = Burst::<4>::new();
    for n in 0..4 {
        burst.push(packet(n)).unwrap();
    }
    assert!(burst.is_full());
    let back = burst.push(packet(9)).unwrap_err();
    assert_eq!(back.data(), [9], "what does not fit comes back");
    assert_eq!(burst.pop_front().unwrap().data(), [0]);
    assert_eq!(burst.pop_front().unwrap().data(), [1]);
    assert_eq!((burst.len(), burst.room()), (2, 2));
    burst.push(packet(4)).unwrap();
    burst.push(packet(5)).unwrap();
    assert_eq!(contents(&burst), [2, 3, 4, 5]);
    assert_eq!(burst.pop_back().unwrap().data(), [5]);
    for packet in &mut burst {
        packet.data_mut()[0] += 10;
    }
    assert_eq!(contents(&burst), [12, 13, 14]);
    let mut other = Burst::<2>::new();
    assert_eq!(other.append(&mut burst), 2);
    assert_eq!(contents(&burst), [14]);
    assert_eq!(burst.append(&mut other), 2);
    assert_eq!(contents(&burst), [14, 12, 13]);
    assert_eq!(burst.drain().take(2).map(|packet| packet.data()[0]).collect::<Vec<_>>(), [14, 12]);
    assert_eq!(contents(&burst), [13]);
    // The gap at the front does not count against the room.
    assert!(pool.alloc_bulk(&mut burst, 3));
    assert_eq!((burst.len(), burst.as_slice()[0].data()), (4, &[13][..]));
}

fn traffic(eal: &Eal) {
    let pool = Mempool::new(eal, "rx", 511, 64, 2048 + HEADROOM, None).unwrap();
    let id = eal.find("net_null0").unwrap();
    let config = PortConfig { rx_queues: 2, tx_queues: 2, ..PortConfig::default() };
    let none = Port::start(eal, id, &config, &[]).unwrap_err();
    assert_eq!(none, PortError::Pools { pools: 0, queues: 2 });
    let many = PortConfig { rx_queues: 5000, ..config.clone() };
    assert!(matches!(
        Port::start(eal, id, &many, std::slice::from_ref(&pool)),
        Err(PortError::Queues { rx: 5000, .. })
    ));
    let (port, mut rx, mut tx) = Port::start(eal, id, &config, std::slice::from_ref(&pool)).unwrap();
    assert_eq!((rx.len(), tx.len(), rx[1].index(), tx[1].port()), (2, 2, 1, id));
    assert_eq!(
        Port::start(eal, id, &config, std::slice::from_ref(&pool)).map(|_| ()),
        Err(PortError::Busy(id)),
        "a port is started once"
    );
    assert_eq!(eal.detach(id), Err(PortError::Busy(id)));

    let mut burst = Burst::<32>::new();
    assert_eq!(rx[0].rx_burst(&mut burst), 32);
    assert!(burst.iter().all(|packet| packet.pkt_len() == 300));
    assert_eq!(rx[0].rx_burst(&mut burst), 0, "a full burst takes no more");
    assert_eq!(tx[0].tx_burst(&mut burst), 32);
    assert!(burst.is_empty());
    assert_eq!(tx[0].tx_burst(&mut burst), 0);
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (32, 32));
    let xstats = port.xstats().unwrap();
    assert!(xstats.contains(&("tx_good_packets".to_owned(), 32)), "{xstats:?}");
    port.reset_stats().unwrap();
    assert_eq!(port.stats().unwrap().tx_packets, 0);

    // The device runs as long as a queue is left.
    drop(port);
    drop(rx);
    assert_eq!(
        Port::start(eal, id, &config, std::slice::from_ref(&pool)).map(|_| ()),
        Err(PortError::Busy(id))
    );
    drop(tx);
    assert_eq!(pool.in_use(), 0);
    for _ in 0..50 {
        let (_port, mut rx, _tx) = Port::start(eal, id, &config, std::slice::from_ref(&pool)).unwrap();
        assert_eq!(rx[1].rx_burst(&mut burst), 32);
        burst.clear();
    }
    assert_eq!(pool.in_use(), 0);
}

fn threads(eal: &Eal) {
    let main = eal.register_thread().unwrap().lcore();
    let pool = Mempool::new(eal, "threads", 255, 64, 1024, None).unwrap();
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let guard = eal.register_thread().unwrap();
            let again = eal.register_thread().unwrap();
            assert_eq!(guard.lcore(), again.lcore());
            assert_ne!(guard.lcore(), main);
            drop(again);
            let mut burst = Burst::<32>::new();
            assert!(pool.alloc_bulk(&mut burst, 32));
            guard.lcore()
        });
        assert!(worker.join().unwrap() < 128);
    });
    // What lay in the worker's cache is there for others.
    let mut all = Burst::<255>::new();
    assert!(pool.alloc_bulk(&mut all, 255));
}

/// Packets outlive the handle of their pool; its memory stays, and serves the next pool of that shape.
fn outliving(eal: &Eal) {
    let pool = Mempool::new(eal, "first", 63, 0, 1024, None).unwrap();
    let mut packet = pool.alloc().unwrap();
    drop(pool);
    packet.append(800).unwrap().fill(0xa5);
    let second = Mempool::new(eal, "second", 63, 0, 1024, None).unwrap();
    assert_eq!(second.available(), 63, "not the one that is missing a packet");
    assert!(packet.data().iter().all(|byte| *byte == 0xa5));
    let sender = thread::spawn(move || drop(packet));
    sender.join().unwrap();
    drop(second);
    for _ in 0..10_000 {
        let pool = Mempool::new(eal, "again", 63, 0, 1024, None).unwrap();
        assert_eq!(pool.available(), 63);
    }
}

fn shutdown(eal: Eal) {
    assert_eq!(eal.clone().shutdown(), Err(EalError::InUse(1)));
    let moved = eal.clone();
    assert_eq!(thread::spawn(move || moved.shutdown()).join().unwrap(), Err(EalError::WrongThread));
    eal.shutdown().unwrap();
}

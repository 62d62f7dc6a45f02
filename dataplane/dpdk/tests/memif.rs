//! Two processes over shared memory, unprivileged and without hugepages: the mode that works anywhere.
//!
//! The test starts its own program again as the peer, told apart by an environment variable.

mod common;

use std::env;
use std::process::Child;
use std::time::{Duration, Instant};

use dpdk::{Burst, Eal, EalConfig, Mempool, Port, PortConfig, PortError, RxQueue, TxQueue, memif_device};

const PEER: &str = "DPDK_TEST_MEMIF_PEER";
const MTU: u16 = 4200;
const PACKETS: u32 = 20_000;
/// From hello to goodbye; a loaded machine needs a fraction of it.
const LIMIT: Duration = Duration::from_secs(60);

fn device(role: &str, socket: &str) -> String {
    memif_device(&format!("net_memif0,role={role},id=0,socket=spw-test-{socket},rsize=8"), MTU)
}

struct Side {
    port: Port,
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
}

fn side(eal: &Eal, device: &str) -> Side {
    let id = eal.attach(device).unwrap();
    let room = Mempool::data_room_for_mtu(MTU).unwrap();
    let pool = Mempool::new(eal, "memif", 1023, 64, room, None).unwrap();
    let config = PortConfig { mtu: Some(MTU), ..PortConfig::default() };
    let (port, mut rx, mut tx) = Port::start(eal, id, &config, std::slice::from_ref(&pool)).unwrap();
    assert_eq!(port.mtu(), MTU);
    Side { port, rx: rx.remove(0), tx: tx.remove(0), pool }
}

/// Length of packet `n`: all sizes up to the largest frame.
fn length(n: u32) -> usize {
    let largest = u32::from(MTU) + 14;
    (60 + n.wrapping_mul(7919) % (largest - 60 + 1)) as usize
}

#[test]
fn two_processes() {
    match env::var(PEER) {
        Ok(socket) => echo(&socket),
        Err(_) => drive(),
    }
}

/// The peer: sends back what comes, until nothing came for a while and the link is down.
fn echo(socket: &str) {
    let eal = Eal::init(&EalConfig::default()).unwrap();
    let Side { port, mut rx, mut tx, pool } = side(&eal, &device("client", socket));
    port.wait_link(LIMIT).unwrap();
    let mut burst = Burst::<32>::new();
    let mut echoed = 0;
    let start = Instant::now();
    while port.link().unwrap().up {
        assert!(start.elapsed() < LIMIT, "only {echoed} came");
        if rx.rx_burst(&mut burst) == 0 {
            std::thread::yield_now();
        }
        while !burst.is_empty() && port.link().unwrap().up {
            echoed += tx.tx_burst(&mut burst);
        }
    }
    burst.clear();
    drop((port, rx, tx));
    assert_eq!(pool.in_use(), 0, "everything came home");
    drop(pool);
    assert_eq!(echoed, PACKETS as usize);
    eal.shutdown().unwrap();
}

fn drive() {
    let eal = Eal::init(&EalConfig::default()).unwrap();
    let socket = std::process::id().to_string();
    let Side { port, mut rx, mut tx, pool } = side(&eal, &device("server", &socket));
    assert!(!port.link().unwrap().up);
    let error = port.wait_link(Duration::from_millis(20)).unwrap_err();
    assert_eq!(
        error,
        PortError::LinkDown { port: port.id(), waited: Duration::from_millis(20), interface: None }
    );

    sizes(&eal, &pool);
    rude(&format!("spw-test-{socket}"));
    let copy = common::Copy::new("memif");
    let peer = || copy.unprivileged("two_processes").env(PEER, &socket).spawn().unwrap();
    for _ in 0..15 {
        killed(peer(), &port, &mut rx, &mut tx, &pool);
    }

    // The port goes on with the next peer.
    let mut child = peer();
    assert!(port.wait_link(LIMIT).unwrap().up);
    port.reset_stats().unwrap();
    let start = Instant::now();
    let (mut out, mut back) = (Burst::<32>::new(), Burst::<64>::new());
    let (mut made, mut sent, mut returned) = (0u32, 0, 0u32);
    let mut copy = vec![0; usize::from(MTU) + 14];
    while returned < PACKETS {
        assert!(start.elapsed() < LIMIT, "{sent} sent, {returned} returned");
        // Far more than the rings of 256 hold, so that both sides meet a full ring.
        let wanted = if made - returned < 900 { 32.min(PACKETS - made) } else { 0 };
        if out.is_empty() && pool.alloc_bulk(&mut out, wanted as usize) {
            for packet in &mut out {
                let bytes = packet.append(length(made)).unwrap();
                bytes.fill(made as u8);
                bytes[..4].copy_from_slice(&made.to_be_bytes());
                made += 1;
            }
        }
        sent += tx.tx_burst(&mut out);
        if rx.rx_burst(&mut back) == 0 {
            std::thread::yield_now();
        }
        for packet in back.drain() {
            assert_eq!(packet.pkt_len(), length(returned), "packet {returned}");
            assert_eq!(packet.copy_to_slice(0, &mut copy), packet.pkt_len());
            assert_eq!(copy[..4], returned.to_be_bytes());
            assert!(
                copy[4..packet.pkt_len()].iter().all(|byte| *byte == returned as u8),
                "packet {returned}"
            );
            assert!(packet.is_contiguous());
            returned += 1;
        }
    }
    assert_eq!(sent, PACKETS as usize);
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (u64::from(PACKETS), u64::from(PACKETS)));
    drop((out, back, rx, tx, port));
    assert_eq!(pool.in_use(), 0);
    assert!(child.wait().unwrap().success(), "the peer's own checks");
    drop(pool);
    eal.shutdown().unwrap();
}

/// Whoever connects to the server's socket and hangs up at once, or says something else than memif does, changes nothing.
fn rude(name: &str) {
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    for n in 0..300usize {
        let peer = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&peer, &address).unwrap();
        // Lengths around that of a memif message, which is 128 bytes, among them.
        if n % 3 == 1 {
            let _ = send(&peer, &vec![n as u8; 1 + n % 200], SendFlags::NOSIGNAL);
        }
    }
}

/// A peer that dies in the middle of traffic takes the link down, and nothing of ours with it.
fn killed(mut child: Child, port: &Port, rx: &mut RxQueue, tx: &mut TxQueue, pool: &Mempool) {
    assert!(port.wait_link(LIMIT).unwrap().up);
    let (mut out, mut back) = (Burst::<32>::new(), Burst::<32>::new());
    let start = Instant::now();
    let mut killed = false;
    while port.link().unwrap().up {
        assert!(start.elapsed() < LIMIT, "the link stays up");
        // Nearly all the time goes into polling, so that the end comes during a poll.
        for _ in 0..500 {
            if out.is_empty() && pool.alloc_bulk(&mut out, 32) {
                for packet in &mut out {
                    packet.append(1000).unwrap();
                }
            }
            tx.tx_burst(&mut out);
            rx.rx_burst(&mut back);
            back.clear();
        }
        if !killed && start.elapsed() > Duration::from_millis(10) {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    out.clear();
    assert!(pool.alloc_bulk(&mut out, 32));
    assert_eq!((tx.tx_burst(&mut out), rx.rx_burst(&mut back)), (0, 0));
    assert_eq!(out.len(), 32, "what is not sent stays with the caller");
    drop(out);
    assert_eq!(pool.in_use(), 0);
}

/// Both sides must have buffers of the same size, and large enough ones.
fn sizes(eal: &Eal, pool: &Mempool) {
    // A socket for each case: the driver goes on listening on that of a server that was detached.
    let start = |name: &str, role: &str, case: u32, asked: u16, mtu: u16| {
        let socket = format!("spw-sizes-{case}-{}", std::process::id());
        let device = memif_device(&format!("{name},role={role},id=1,socket={socket}"), asked);
        let id = eal.attach(&device).unwrap();
        let config = PortConfig { mtu: Some(mtu), ..PortConfig::default() };
        let started = Port::start(eal, id, &config, std::slice::from_ref(pool));
        (id, started.map(|(port, _, _)| port))
    };
    let (id, error) = start("net_memif5", "client", 1, 1500, 1500);
    let error = error.unwrap_err();
    assert!(matches!(error, PortError::NoPeer { port, .. } if port == id), "{error:?}");
    assert!(error.to_string().contains("role=server"), "{error}");
    eal.detach(id).unwrap();

    let (id, error) = start("net_memif1", "server", 2, 1500, MTU);
    let error = error.unwrap_err();
    assert_eq!(error, PortError::MemifBuffer { port: id, mtu: MTU, need: 4226, have: 2048 });
    assert!(error.to_string().contains("bsize=4226"), "{error}");
    eal.detach(id).unwrap();

    let (server, large) = start("net_memif2", "server", 3, MTU, MTU);
    let (client, small) = start("net_memif3", "client", 3, 1500, 1500);
    let (large, small) = (large.unwrap(), small.unwrap());
    let patience = Duration::from_millis(300);
    assert!(large.wait_link(patience).is_err() && !small.link().unwrap().up, "buffers differ");
    drop(small);
    eal.detach(client).unwrap();
    let (client, same) = start("net_memif4", "client", 3, MTU, 1500);
    let same = same.unwrap();
    assert!(
        large.wait_link(LIMIT).unwrap().up && same.wait_link(LIMIT).unwrap().up,
        "the MTU alone may differ"
    );
    drop((large, same));
    eal.detach(client).unwrap();
    eal.detach(server).unwrap();
}

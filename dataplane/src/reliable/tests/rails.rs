//! Endpoints of several ports.

use super::*;
use crate::entropy::{EntropyError, EntropyRange};
use roce_proto::transport::PathState;

/// Endpoints of so many ports with so many paths.
fn net(ports: usize, paths: u8) -> Net {
    let pairs: Vec<_> = (0..ports).map(|_| MemoryPort::pair(&MemoryConfig::default())).collect();
    let (a, b) = pairs.into_iter().unzip();
    Net::over([a, b], 1, &rails(ports, paths))
}

fn rails(ports: usize, paths: u8) -> ReliableConfig {
    let rails = std::array::from_fn(|at| Some(at + 1).filter(|port| *port < ports));
    ReliableConfig { rails, ..config(paths) }
}

/// Which paths of a session are only probed.
fn bad(net: &Net, key: SessionKey) -> Vec<bool> {
    let states = (0..).map_while(|path| net.a.1[0].engine().path_stats(key, path));
    states.map(|path| path.state == PathState::Bad).collect()
}

/// Opens a session, and runs until all of its paths have been found to lead somewhere.
fn open(net: &mut Net, ip: IpAddr, own: IpAddr) -> Vec<(SessionKey, SessionKey)> {
    let keys = net.open(ip, own);
    net.until(|net| !bad(net, keys[0].0).contains(&true));
    keys
}

fn delivered(net: &Net) -> Vec<u64> {
    let of = |w: &W| (0..w.ports()).map(|port| w.counters(port).unwrap().delivered).collect::<Vec<_>>();
    of(&net.a.0).into_iter().zip(of(&net.b.0)).map(|(a, b)| a + b).collect()
}

#[test]
fn messages_take_all_ports_over_either_family() {
    for (ip, own) in [(v4(2), v4(1)), (v6(2), v6(1))] {
        for ports in [1, 2, 4] {
            let mut net = net(ports, 8);
            let keys = open(&mut net, ip, own);
            exchange(&mut net, &keys, true);
            exchange(&mut net, &keys, false);
            let delivered = delivered(&net);
            let all: u64 = delivered.iter().sum();
            for (port, count) in delivered.iter().enumerate() {
                assert!(count * 2 * ports as u64 > all, "port {port} of {ports}: {delivered:?}");
            }
        }
    }
}

#[test]
fn a_port_that_takes_nothing_costs_no_message() {
    let (a0, b0) = MemoryPort::pair(&MemoryConfig::default());
    let (a1, left) = MemoryPort::pair(&MemoryConfig::default());
    let (right, b1) = MemoryPort::pair(&MemoryConfig::default());
    let mut net = Net::over([vec![a0, a1], vec![b0, b1]], 1, &rails(2, 4));
    net.between = Some((left, right, |_| {}));
    let keys = open(&mut net, v4(2), v4(1));
    exchange(&mut net, &keys, true);
    let bad = |net: &Net| bad(net, keys[0].0);
    assert_eq!(bad(&net), [false; 4]);
    let through = net.between.take();
    exchange(&mut net, &keys, true);
    assert_eq!(bad(&net), [false, true, false, true]);
    // What waits there is old by now.
    net.between = through;
    net.until(|net| bad(net) == [false; 4]);
    exchange(&mut net, &keys, true);
}

#[test]
fn ports_without_room_for_paths_or_that_there_are_not_are_refused() {
    let (a, _b) = MemoryPort::pair(&MemoryConfig::default());
    let (c, _d) = MemoryPort::pair(&MemoryConfig::default());
    let narrow =
        PortConfig { entropy: EntropyRange::new(50_000, 50_002).unwrap(), ..PortConfig::new(v4(11)) };
    let mut worker =
        W::new(&WorkerConfig::default(), vec![(a, PortConfig::new(v4(1))), (c, narrow)]).unwrap();
    let mut made = |config: &ReliableConfig| R::new(&mut worker, config, |len| vec![0; len]).map(|_| ());
    assert!(matches!(made(&rails(2, 4)), Err(ReliableError::Entropy(EntropyError::Narrow { .. }))));
    assert_eq!(made(&rails(2, 3)), Ok(()));
    assert_eq!(made(&rails(3, 3)), Err(ReliableError::Qp(QpError::NoPort(2))));
    // Nothing is left of those that were refused: the number is free.
    let number = Some(Qpn::new(0x77).unwrap());
    assert!(made(&ReliableConfig { qpn: number, ..rails(3, 3) }).is_err());
    assert_eq!(made(&ReliableConfig { qpn: number, ..rails(2, 3) }), Ok(()));
}

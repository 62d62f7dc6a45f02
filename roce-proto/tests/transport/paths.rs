//! Many paths, one thing at a time.

use crate::basic::{calm, config};
use crate::lies::Victim;
use crate::net::{Net, Weather};
use roce_proto::transport::{Algorithm, Config, Drop, Limits, Mechanisms, Operation, Received, Status};
use roce_proto::wire::shim::{Data, Kind, MAX_CONTROL_LEN, Semantics};
use std::sync::Mutex;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// As long as nobody hears of a rejection, nothing behind it is acknowledged.
#[test]
fn a_rejection_takes_another_path_than_one_that_is_not_there() {
    let mut v = Victim::new(&Config { paths: 3, ..config() });
    v.engine.deny_path(v.key, 0);
    v.post(1, 10, None);
    assert_eq!(v.give(v.data((0, 1), 100, 0, 0)), Received::Dropped(Drop::Rejected));
    let mut buf = [0; MAX_CONTROL_LEN];
    let sent: Vec<_> = std::iter::from_fn(|| v.engine.transmit(&mut buf)).map(|t| (t.kind, t.path)).collect();
    assert!(sent.contains(&(Kind::Reject, 1)), "{sent:?}");
}

/// Without parity, messages tagged SYNC have copies, however long.
fn copying() -> Config {
    Config { mechanisms: Mechanisms { parity: false, ..Mechanisms::default() }, ..config() }
}

/// Messages take turns of 16 segments, but the last two of one that goes twice stay together: its copies are of its own.
#[test]
fn the_segments_that_go_twice_are_of_their_message() {
    static COPIES: Mutex<Vec<(u64, u32)>> = Mutex::new(Vec::new());
    for segments in [1, 2, 16, 17, 18, 33] {
        COPIES.lock().unwrap().clear();
        let mut net = Net::new(1, calm(), &[copying(), copying()]);
        net.open(0, 1);
        net.filter = |bytes| {
            if let Ok((data, _)) = Data::parse(bytes)
                && data.again
            {
                COPIES.lock().unwrap().push((data.tag, data.segment));
            }
            true
        };
        for tag in [1, 2] {
            net.receive(1, 0, tag, 40_000);
        }
        net.send_tagged(0, 1, (1, 1_000 * segments), Semantics { sync: true, ..Semantics::default() });
        net.send(0, 1, 2, 40_000);
        net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 2);
        let last = segments as u32;
        let wanted: Vec<_> = (last.saturating_sub(2)..last).map(|segment| (1, segment)).collect();
        assert_eq!(*COPIES.lock().unwrap(), wanted, "{segments} segments");
    }
}

/// A path of eight that loses is passed over; that all together send less is for when most of them do.
#[test]
fn losses_of_one_path_leave_the_window_as_it_is() {
    let limits = Limits { window: 65_536, segments: 65_536, ..Limits::SMALL };
    let config = Config { paths: 8, congestion: Algorithm::DelayEcn, limits, ..config() };
    let took = |filter: fn(&[u8]) -> bool| {
        let weather = Weather { delay: Duration::from_micros(100), ..Weather::default() };
        let mut net = Net::new(3, weather, &[config, config]);
        net.open(0, 1);
        net.filter = filter;
        net.receive(1, 0, 1, 20_000_000);
        let begin = net.now;
        net.send(0, 1, 1, 20_000_000);
        net.run(SECOND, |net| net.completions(0, Operation::Send, Status::Success) == 1);
        (net.now.saturating_since(begin), net.hosts[0].engine.counters().retransmitted)
    };
    let lossy = |paths: u8| -> fn(&[u8]) -> bool {
        match paths {
            0 => |_| true,
            1 => |b| Data::parse(b).map_or(true, |(d, _)| d.path != 3 || d.path_seq.0 % 5 > 0),
            _ => |b| Data::parse(b).map_or(true, |(d, _)| d.path_seq.0 % 5 > 0),
        }
    };
    let [(sound, none), (one, some), (all, many)] = [0, 1, 8].map(lossy).map(took);
    println!("{sound:?} {none}, {one:?} {some}, {all:?} {many}");
    assert!(none == 0 && some > 50 && many > some, "{none}, {some}, {many} lost");
    assert!(one < sound.mul_f64(1.25), "{one:?} against {sound:?}");
    assert!(all > sound.mul_f64(2.0), "{all:?} against {sound:?}");
}

use super::*;
use proptest::prelude::*;
use std::net::Ipv4Addr;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 10]);

fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn user(n: usize) -> AhKey {
    let mut keys = SlotMap::<AhKey, ()>::with_key();
    (0..=n).map(|_| keys.insert(())).last().unwrap_or_default()
}

fn claim(of: IpAddr, mac: MacAddr) -> Claim {
    Claim { ip: of, mac, solicited: false, replaces: true }
}

fn answer(of: IpAddr, mac: MacAddr) -> Claim {
    Claim { solicited: true, ..claim(of, mac) }
}

fn table() -> NeighbourTable {
    NeighbourTable::new(8, 1)
}

/// A table with one neighbour that has answered at 0, and how long that is believed in milliseconds.
fn resolved() -> (NeighbourTable, u64) {
    let mut table = table();
    assert_eq!(table.acquire(ip(1), user(0), at(0)), Ok(None));
    assert_eq!(table.next(at(0), |_| false), Some(Due::Ask(ip(1))));
    assert!(table.claim(&answer(ip(1), MAC), at(0)));
    let believed = table.reachable_time.as_millis() as u64;
    assert!((15_000..45_000).contains(&believed));
    (table, believed)
}

/// What becomes due from `from` to `end`, polled each millisecond.
fn run(table: &mut NeighbourTable, from: u64, end: u64, used: bool) -> Vec<(u64, Due)> {
    let mut all = Vec::new();
    for ms in from..end {
        while let Some(due) = table.next(at(ms), |_| used) {
            all.push((ms, due));
        }
    }
    all
}

#[test]
fn three_requests_a_second_apart_then_one_in_five() {
    let mut table = table();
    table.acquire(ip(1), user(0), at(0)).unwrap();
    let asked = run(&mut table, 0, 20_000, true);
    // The third goes unanswered for a second; then it counts as failed and is asked each five seconds.
    let want = [0, 1_000, 2_000, 8_000, 13_000, 18_000].map(|ms| (ms, Due::Ask(ip(1))));
    assert_eq!(asked, want);
    let known = table.get(ip(1)).unwrap();
    assert_eq!((known.state, known.asked, known.mac), (State::Failed, 6, None));
    assert!(table.claim(&claim(ip(1), MAC), at(20_000)), "one that shows itself is believed at once");
    assert_eq!(table.get(ip(1)).unwrap().state, State::Stale);
}

#[test]
fn every_unresolved_neighbour_is_asked_in_the_same_round() {
    let mut table = table();
    for last in 1..=5 {
        table.acquire(ip(last), user(0), at(0)).unwrap();
    }
    let mut asked: Vec<_> = std::iter::from_fn(|| table.next(at(0), |_| false)).collect();
    asked.sort();
    assert_eq!(asked, (1..=5).map(|n| Due::Ask(ip(n))).collect::<Vec<_>>());
}

#[test]
fn handles_made_and_destroyed_in_a_loop_ask_no_more_often() {
    let mut table = table();
    let mut asked = 0;
    for ms in 0..3_000 {
        table.acquire(ip(1), user(0), at(ms)).unwrap();
        asked += std::iter::from_fn(|| table.next(at(ms), |_| true)).count();
        table.release(ip(1), user(0));
    }
    assert_eq!(asked, 3);
}

#[test]
fn nobody_without_an_entry_gets_one_and_no_group_or_zero_address_is_taken() {
    let mut table = table();
    for n in 0..=255 {
        assert!(!table.claim(&claim(ip(n), MAC), at(0)));
    }
    assert!(table.is_empty());
    table.acquire(ip(1), user(0), at(0)).unwrap();
    for bad in [MacAddr::ZERO, MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        assert!(!table.claim(&answer(ip(1), bad), at(0)));
    }
    assert_eq!(table.get(ip(1)).unwrap().mac, None);
}

#[test]
fn an_entry_in_use_is_confirmed_by_unicast_and_one_that_is_not_is_left_alone() {
    let (mut table, believed) = resolved();
    assert_eq!(run(&mut table, 1, 100_000, false), [], "nobody sends to it");
    assert_eq!(table.get(ip(1)).unwrap().state, State::Stale);
    let (mut table, _) = resolved();
    assert_eq!(run(&mut table, 1, believed + 1, true), [(believed, Due::Probe(ip(1), MAC))]);
    assert!(!table.claim(&answer(ip(1), MAC), at(believed + 1)), "nothing changed for who sends");
    assert_eq!(table.get(ip(1)).unwrap().state, State::Reachable);
    let again = believed + 1 + believed;
    assert_eq!(run(&mut table, believed + 1, again + 1, true), [(again, Due::Probe(ip(1), MAC))]);
}

#[test]
fn one_that_no_longer_answers_is_lost_after_six_requests_and_kept_until_then() {
    let (mut table, t) = resolved();
    let all = run(&mut table, 1, t + 12_000, true);
    let want: Vec<_> = (0..3)
        .map(|n| (t + n * 1_000, Due::Probe(ip(1), MAC)))
        .chain((3..6).map(|n| (t + n * 1_000, Due::Ask(ip(1)))))
        .chain([(t + 6_000, Due::Lost(ip(1))), (t + 11_000, Due::Ask(ip(1)))])
        .collect();
    assert_eq!(all, want);
    assert_eq!(table.get(ip(1)).unwrap().mac, None);
    assert!(table.claim(&answer(ip(1), OTHER), at(t + 11_500)), "and found again, wherever it is");
    assert_eq!(table.get(ip(1)).unwrap().state, State::Reachable);
}

#[test]
fn an_answer_nobody_asked_for_confirms_nothing() {
    let (mut table, believed) = resolved();
    // At half time: it must not count as an answer.
    assert!(!table.claim(&answer(ip(1), MAC), at(believed / 2)));
    assert_eq!(run(&mut table, 1, believed + 1, true).len(), 1);
}

#[test]
fn a_peer_that_moves_is_followed_and_a_dispute_is_settled_by_asking() {
    let (mut table, _) = resolved();
    assert!(table.claim(&claim(ip(1), OTHER), at(5_000)), "announced from elsewhere");
    assert_eq!((table.get(ip(1)).unwrap().mac, table.get(ip(1)).unwrap().state), (Some(OTHER), State::Stale));
    // Two that claim it in turns, at full rate: no change within a second, and everybody is asked at its end.
    for ms in 5_001..6_000 {
        assert!(!table.claim(&claim(ip(1), if ms % 2 == 0 { MAC } else { OTHER }), at(ms)));
    }
    assert_eq!(run(&mut table, 5_001, 6_500, true), [(6_000, Due::Ask(ip(1)))]);
    assert!(table.claim(&answer(ip(1), MAC), at(6_500)));
    assert_eq!(table.get(ip(1)).unwrap().state, State::Reachable);
}

#[test]
fn after_a_new_start_of_the_link_everybody_is_asked_again() {
    let (mut table, _) = resolved();
    table.set_static(ip(9), MAC).unwrap();
    table.acquire(ip(9), user(2), at(0)).unwrap();
    table.acquire(ip(2), user(1), at(0)).unwrap();
    assert_eq!(run(&mut table, 0, 3_500, false).len(), 3, "nobody answers for the second");
    table.ask_anew(at(5_000));
    let mut asked = run(&mut table, 5_000, 5_900, false);
    asked.sort();
    assert_eq!(asked, [(5_000, Due::Ask(ip(1))), (5_000, Due::Ask(ip(2)))]);
    assert_eq!(table.get(ip(1)).unwrap().mac, Some(MAC), "kept meanwhile");
    assert_eq!(table.get(ip(9)).unwrap().state, State::Static);
    assert!(table.claim(&answer(ip(1), OTHER), at(5_900)));
    assert_eq!(table.get(ip(1)).unwrap().state, State::Reachable);
}

#[test]
fn without_the_override_flag_another_address_only_raises_a_doubt() {
    let (mut table, _) = resolved();
    let meek = Claim { replaces: false, ..claim(ip(1), OTHER) };
    assert!(!table.claim(&meek, at(2_000)));
    assert_eq!(table.get(ip(1)).unwrap().mac, Some(MAC));
    assert_eq!(run(&mut table, 2_000, 2_001, true), [(2_000, Due::Probe(ip(1), MAC))]);
}

#[test]
fn a_request_that_was_not_sent_stays_due() {
    let mut table = table();
    table.acquire(ip(1), user(0), at(0)).unwrap();
    assert_eq!(table.next(at(0), |_| false), Some(Due::Ask(ip(1))));
    table.not_sent(ip(1), at(0));
    assert_eq!(table.get(ip(1)).unwrap().asked, 0);
    assert_eq!(table.next(at(1), |_| false), Some(Due::Ask(ip(1))));
    assert_eq!(table.next(at(2), |_| false), None);
}

/// Each handle is asked whether it was used: one that is passed over would be taken for in use at the next look.
#[test]
fn all_users_are_asked_whether_they_sent() {
    let (mut table, believed) = resolved();
    table.acquire(ip(1), user(1), at(0)).unwrap();
    let mut asked = Vec::new();
    let due = table.next(at(believed), |user| {
        asked.push(user);
        true
    });
    assert_eq!(due, Some(Due::Probe(ip(1), MAC)));
    asked.sort();
    assert_eq!(asked, [user(0), user(1)]);
}

#[test]
fn tables_believe_answers_for_times_of_their_own() {
    let times: std::collections::BTreeSet<Duration> =
        (0..20).map(|seed| NeighbourTable::new(8, seed).reachable_time).collect();
    assert!(times.len() > 15, "{times:?}");
    assert!(times.iter().all(|t| (REACHABLE_TIME / 2..REACHABLE_TIME * 3 / 2).contains(t)), "{times:?}");
}

#[test]
fn neighbours_that_come_and_go_leave_timers_bounded() {
    let mut table = table();
    for n in 0..10_000u32 {
        let ip = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n));
        table.acquire(ip, user(0), at(0)).unwrap();
        table.release(ip, user(0));
    }
    assert!(table.len() <= 8 && table.timers.len() <= 4 * 9 + 64, "{}", table.timers.len());
}

#[test]
fn static_entries_are_neither_asked_for_nor_changed() {
    let mut table = table();
    table.set_static(ip(1), MAC).unwrap();
    assert_eq!(table.acquire(ip(1), user(0), at(0)), Ok(Some(MAC)));
    assert!(!table.claim(&answer(ip(1), OTHER), at(0)));
    table.release(ip(1), user(0));
    assert_eq!(run(&mut table, 0, 100_000, true), []);
    assert_eq!((table.len(), table.get(ip(1)).unwrap().mac), (1, Some(MAC)));
}

#[test]
fn what_is_fed_is_taken_from_there_only() {
    let mut table = table();
    table.set_fed();
    table.acquire(ip(1), user(0), at(0)).unwrap();
    assert_eq!(run(&mut table, 0, 1_500, true).len(), 2, "asked for, of whoever feeds it");
    assert!(!table.claim(&answer(ip(1), MAC), at(1_500)));
    assert!(table.feed(ip(1), Some(MAC), at(1_500)));
    assert!(!table.feed(ip(2), Some(MAC), at(1_500)), "nobody needs it");
    assert_eq!(run(&mut table, 1_500, 100_000, true), []);
    table.ask_anew(at(90_000));
    assert_eq!(run(&mut table, 90_000, 92_000, true), [], "whoever feeds it knows of changes");
    assert!(table.feed(ip(1), Some(MacAddr([1, 0, 0x5e, 0, 0, 1])), at(99_000)), "that is no station's");
    assert_eq!(table.get(ip(1)).unwrap().mac, None);
    assert!(table.feed(ip(1), Some(MAC), at(99_500)));
    assert!(table.feed(ip(1), None, at(100_000)));
    assert_eq!(run(&mut table, 100_000, 100_001, true), [(100_000, Due::Ask(ip(1)))]);
    assert_eq!(table.len(), 1);
}

#[test]
fn the_table_is_bounded_and_gives_up_only_what_nobody_uses() {
    let mut table = NeighbourTable::new(2, 1);
    table.acquire(ip(1), user(0), at(0)).unwrap();
    table.acquire(ip(1), user(1), at(0)).unwrap();
    table.acquire(ip(2), user(2), at(0)).unwrap();
    assert_eq!(table.acquire(ip(3), user(3), at(0)), Err(TableFull));
    assert_eq!(table.set_static(ip(3), MAC), Err(TableFull));
    table.release(ip(1), user(0));
    assert_eq!(table.acquire(ip(3), user(3), at(0)), Err(TableFull));
    table.release(ip(1), user(1));
    assert_eq!(table.acquire(ip(3), user(3), at(0)), Ok(None));
    assert!(table.get(ip(1)).is_none());
    table.release(ip(2), user(2));
    table.release(ip(3), user(3));
    run(&mut table, 0, 2_000, true);
    assert!(table.is_empty());
    assert_eq!(table.next_due(), Instant::MAX);
}

#[test]
fn of_those_that_nobody_uses_the_one_asked_for_longest_ago_goes_first() {
    for order in [[1, 2], [2, 1]] {
        let mut table = NeighbourTable::new(2, 1);
        for (n, last) in order.into_iter().enumerate() {
            table.acquire(ip(last), user(n), at(100 * n as u64)).unwrap();
            let due = table.next(at(100 * n as u64), |_| true);
            assert_eq!(due, Some(Due::Ask(ip(last))));
            table.release(ip(last), user(n));
        }
        table.acquire(ip(3), user(3), at(200)).unwrap();
        assert_eq!(order.map(|last| table.get(ip(last)).is_some()), [false, true]);
    }
}

#[test]
fn a_flood_of_claims_leaves_timers_bounded() {
    let (mut table, _) = resolved();
    for ms in 1..200_000 {
        let mac = if ms % 2 == 0 { MAC } else { OTHER };
        table.claim(&answer(ip(1), mac), at(ms));
        while table.next(at(ms), |_| true).is_some() {}
    }
    assert!(table.timers.len() <= 4 + 64, "{}", table.timers.len());
    assert_eq!(table.len(), 1);
}

/// The same rules over a plain list, looked through at every step.
#[derive(Debug)]
struct Model {
    list: Vec<Naive>,
    believed: u64,
    max: usize,
}

#[derive(Debug)]
struct Naive {
    ip: IpAddr,
    mac: Option<MacAddr>,
    state: State,
    users: usize,
    used: bool,
    asked: u32,
    asked_at: Option<u64>,
    taken: u64,
    due: Option<u64>,
}

impl Model {
    fn find(&mut self, ip: IpAddr) -> Option<&mut Naive> {
        self.list.iter_mut().find(|n| n.ip == ip)
    }

    fn acquire(&mut self, ip: IpAddr, now: u64) {
        let Some(n) = self.find(ip) else {
            let (mac, state, due) = (None, State::Resolving, Some(now));
            let naive =
                Naive { ip, mac, state, users: 1, used: false, asked: 0, asked_at: None, taken: 0, due };
            return self.list.push(naive);
        };
        n.users += 1;
        if n.mac.is_none() {
            n.state = State::Resolving;
            n.asked = 0;
            n.due = Some(now.max(n.asked_at.map_or(0, |t| t + 1_000)));
        }
    }

    fn claim(&mut self, c: &Claim, now: u64) -> bool {
        let believed = self.believed;
        let Some(n) = self.find(c.ip) else { return false };
        if n.state == State::Static {
            return false;
        }
        let new = n.mac != Some(c.mac);
        if n.mac.is_some() && new && !c.replaces {
            if n.state == State::Reachable {
                n.state = State::Stale;
                n.due = Some(now.max(n.asked_at.map_or(0, |t| t + 1_000)));
            }
            return false;
        }
        if n.mac.is_some() && new && now < n.taken + 1_000 {
            if n.state != State::Probing {
                n.state = State::Probing;
                n.asked = 3;
                n.due = Some((n.taken + 1_000).max(n.asked_at.map_or(0, |t| t + 1_000)));
            }
            return false;
        }
        if new {
            n.mac = Some(c.mac);
            n.taken = now;
        }
        if c.solicited && n.asked > 0 {
            n.state = State::Reachable;
            n.due = Some(now + believed);
            n.asked = 0;
        } else if new {
            n.state = State::Stale;
            n.due = Some(now + 5_000);
            n.asked = 0;
        }
        new
    }

    fn poll(&mut self, now: u64) -> Vec<Due> {
        self.list.retain(|n| n.users > 0 || n.state == State::Static || n.due.is_none_or(|due| due > now));
        let mut out = Vec::new();
        for n in self.list.iter_mut().filter(|n| n.due.is_some_and(|due| due <= now)) {
            let mut ask = |n: &mut Naive, what| {
                n.asked += 1;
                n.asked_at = Some(now);
                n.due = Some(now + 1_000);
                out.push(what);
            };
            match n.state {
                State::Static => {}
                State::Resolving if n.asked == 3 => {
                    n.state = State::Failed;
                    n.due = Some(now + 5_000);
                }
                State::Resolving => ask(n, Due::Ask(n.ip)),
                State::Failed => {
                    ask(n, Due::Ask(n.ip));
                    n.due = Some(now + 5_000);
                }
                State::Reachable | State::Stale if std::mem::take(&mut n.used) => {
                    n.state = State::Probing;
                    ask(n, Due::Probe(n.ip, n.mac.unwrap()));
                }
                State::Reachable | State::Stale => {
                    n.state = State::Stale;
                    n.due = Some(now + 5_000);
                }
                State::Probing if n.asked < 3 => ask(n, Due::Probe(n.ip, n.mac.unwrap())),
                State::Probing if n.asked < 6 => ask(n, Due::Ask(n.ip)),
                State::Probing => {
                    n.state = State::Failed;
                    n.mac = None;
                    n.due = Some(now + 5_000);
                    out.push(Due::Lost(n.ip));
                }
            }
        }
        out
    }
}

#[derive(Clone, Debug)]
enum Op {
    Acquire(u8),
    Release(u8),
    Static(u8),
    Claim(u8, MacAddr, bool, bool),
    Use(u8),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let who = 1u8..7;
    let mac = prop_oneof![Just(MAC), Just(OTHER)];
    prop_oneof![
        4 => who.clone().prop_map(Op::Acquire),
        3 => who.clone().prop_map(Op::Release),
        1 => (6u8..8).prop_map(Op::Static),
        8 => (who.clone(), mac, any::<bool>(), any::<bool>()).prop_map(|(w, m, s, r)| Op::Claim(w, m, s, r)),
        4 => who.prop_map(Op::Use),
        8 => prop_oneof![0u64..1_200, Just(1_000), Just(5_000), 10_000u64..50_000].prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever happens in whatever order, table and model say the same; and no address is asked for twice in a second.
    #[test]
    fn the_table_is_the_naive_model(ops in proptest::collection::vec(op(), 1..120), start in 0u64..5_000) {
        let mut table = NeighbourTable::new(5, 3);
        let believed = table.reachable_time.as_millis() as u64;
        prop_assume!(table.reachable_time == Duration::from_millis(believed));
        let mut model = Model { list: Vec::new(), believed, max: 5 };
        // One handle for each address and acquisition; all of an address are the same key.
        let mut keys = SlotMap::<AhKey, ()>::with_key();
        let handles: Vec<AhKey> = (0..10).map(|_| keys.insert(())).collect();
        let mut used = std::collections::HashSet::new();
        let mut last = HashMap::new();
        let mut now = start;
        for op in &ops {
            match *op {
                Op::Acquire(n) | Op::Static(n) => {
                    let mut want = Ok(());
                    if model.find(ip(n)).is_none() && model.list.len() == model.max {
                        let unused = |m: &Naive| m.users == 0 && m.state != State::Static;
                        want = if model.list.iter().any(unused) { Ok(()) } else { Err(TableFull) };
                    }
                    let handle = handles[usize::from(n)];
                    let got = match op {
                        Op::Acquire(_) => table.acquire(ip(n), handle, at(now)).map(drop),
                        _ => table.set_static(ip(n), MAC),
                    };
                    prop_assert_eq!(got, want);
                    // Which of the unused ones had to go is the table's choice.
                    let users: Vec<_> = model.list.iter().filter(|m| table.get(m.ip).is_none()).collect();
                    prop_assert!(users.iter().all(|m| m.users == 0 && m.state != State::Static));
                    model.list.retain(|m| table.get(m.ip).is_some());
                    last.retain(|who, _| table.get(*who).is_some());
                    match (got, op) {
                        (Ok(()), Op::Acquire(_)) => model.acquire(ip(n), now),
                        (Ok(()), _) => {
                            if model.find(ip(n)).is_none() {
                                model.acquire(ip(n), now);
                                model.find(ip(n)).unwrap().users = 0;
                            }
                            let m = model.find(ip(n)).unwrap();
                            (m.mac, m.state, m.asked, m.due) = (Some(MAC), State::Static, 0, None);
                        }
                        _ => {}
                    }
                }
                Op::Release(n) => {
                    table.release(ip(n), handles[usize::from(n)]);
                    if let Some(m) = model.find(ip(n)) {
                        m.users = m.users.saturating_sub(1);
                    }
                }
                Op::Claim(n, mac, solicited, replaces) => {
                    let c = Claim { ip: ip(n), mac, solicited, replaces };
                    prop_assert_eq!(table.claim(&c, at(now)), model.claim(&c, now));
                }
                Op::Use(n) => {
                    if let Some(m) = model.find(ip(n)).filter(|m| m.users > 0) {
                        m.used = true;
                        used.insert(handles[usize::from(n)]);
                    }
                }
                Op::Wait(ms) => now += ms,
            }
            let mut want = model.poll(now);
            let mut got: Vec<_> = std::iter::from_fn(|| table.next(at(now), |u| used.remove(&u))).collect();
            for due in &got {
                if let Due::Ask(who) | Due::Probe(who, _) = due {
                    let before = last.insert(*who, now);
                    prop_assert!(before.is_none_or(|t| now >= t + 1_000), "{who} at {before:?} and {now}");
                }
            }
            want.sort();
            got.sort();
            prop_assert_eq!(got, want);
            prop_assert_eq!(table.len(), model.list.len());
            for m in &mut model.list {
                let known = table.get(m.ip).unwrap();
                prop_assert_eq!((known.mac, known.state, known.asked), (m.mac, m.state, m.asked), "{}", m.ip);
                if m.users == 0 {
                    m.used = false;
                    used.remove(&handles[usize::from(match m.ip { IpAddr::V4(v4) => v4.octets()[3], IpAddr::V6(_) => 0 })]);
                }
            }
            prop_assert!(table.next_due() > at(now));
        }
    }
}

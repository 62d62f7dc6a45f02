//! A window that follows queueing delay and ECN, in the manner of the Ultra Ethernet transport's NSCC: delay says how full the queue is,
//! ECN with delay that it is too full, and ECN without delay that one of many paths is busy, which is no reason to send less. Delay
//! without ECN may also be a process on the way, or at its end, that has to wait for its core. That holds up some packets and not others, and sending
//! less does not shorten it: so it has to be in all packets of some round trips, and takes the window no lower than it began.

use super::pace::{BURST, Pace};
use super::{Acked, Congestion, RoundTrip};
use crate::time::Instant;
use core::time::Duration;

/// The largest window: 8 MiB is 64 Gb/s times 1 ms.
const MOST: u64 = 8 << 20;
/// The first window in segments.
const FIRST: u64 = 16;
/// Least target delay: the 32 segments that one feedback frees, of 4 KiB at 10 Gb/s. Below it a sender's own batches are all there is to
/// see, and windows would be kept so small that control packets are a good part of all.
pub(super) const LEAST_TARGET: Duration = Duration::from_micros(100);

/// The least round trip over which a window is paced: below it a window is little more than what goes at once, and the queue that it makes is short.
const PACED_FROM: Duration = Duration::from_millis(1);
/// And the least window, in bursts.
const PACED_BURSTS: u64 = 4;
/// The share of a round trip in which a window goes, in 256ths: four fifths, so that what was held up is made up for, and a window that grows is used.
const PACED_OVER: u32 = 205;

/// What the target of the least window is higher by, in 256ths: with half as much, the shares of an incast of 100 × 2 MB had an index (Jain) of 0.88 to 0.90, with this of 0.96 to 0.97.
const SCALING: u32 = 200;

/// The window and what it follows.
#[derive(Clone, Copy, Debug)]
pub struct DelayEcn {
    /// When it goes.
    pace: Pace,
    window: u32,
    /// Smoothed delay above the least round trip, nanoseconds.
    delay: u32,
    /// Smoothed round trip for "once a round trip", nanoseconds.
    rtt: u32,
    /// What the receiver lets this sender have in flight, bytes; 0 if it says nothing.
    share: u32,
    last_cut: Moment,
    /// When the round trip began in which losses do not let the window fall below the floor.
    last_loss: Moment,
    floor: u32,
    /// Of which no packet has 64 KiB.
    segment: u16,
    /// It was never cut.
    starting: bool,
    /// It may have a pace.
    paced: bool,
}

/// When something happened, if it ever did: to the microsecond, modulo 73 minutes, of which the question whether a round trip has passed since goes wrong once.
#[derive(Clone, Copy, Debug, Default)]
struct Moment(u32);

impl Moment {
    fn of(now: Instant) -> Moment {
        Moment(((now.as_nanos() >> 10) as u32).max(1))
    }

    /// Whether so many nanoseconds have passed since.
    fn is_past(self, now: Instant, nanos: u32) -> bool {
        self.0 == 0 || Moment::of(now).0.wrapping_sub(self.0) >= nanos >> 10
    }
}

impl DelayEcn {
    /// For segments of so many bytes.
    pub fn new(segment: u32, paced: bool) -> DelayEcn {
        let segment = u16::try_from(segment).unwrap_or(u16::MAX);
        DelayEcn {
            pace: Pace::default(),
            window: FIRST as u32 * u32::from(segment),
            delay: 0,
            rtt: 0,
            share: 0,
            last_cut: Moment::default(),
            last_loss: Moment::default(),
            floor: 0,
            segment,
            starting: true,
            paced,
        }
    }

    fn is_capped(&self) -> bool {
        self.share > 0 && self.window > self.share
    }

    fn least(&self) -> u32 {
        2 * u32::from(self.segment)
    }

    /// A window that nothing has spoken against yet, or the largest, says nothing of what the network carries.
    fn set_pace(&mut self) {
        let says = self.paced && !self.starting && u64::from(self.window) < MOST;
        // A window of less than some bursts is as good as one.
        let long = Duration::from_nanos(self.rtt.into()) >= PACED_FROM
            && self.window() >= PACED_BURSTS * BURST * u64::from(self.segment);
        let over = || Duration::from_nanos(u64::from(self.rtt) * u64::from(PACED_OVER) / 256);
        self.pace.set((says && long).then(|| (self.window(), over())));
    }

    /// Smaller windows have a higher target, in the manner of Swift's flow scaling: else flows with a switch less on their way, whose queues are
    /// a little shorter, would always be below it when all others are above.
    fn target(&self, target: u32) -> u32 {
        let segments = (self.window / u32::from(self.segment)).max(1);
        let share = (2 * 65_536 / segments).isqrt().min(256);
        // A peer may claim round trips of any length.
        target.saturating_add(target / 256 * share / 256 * SCALING)
    }

    /// At most half, once a round trip, and not below `least` bytes.
    fn cut(&mut self, now: Instant, factor_256: u64, least: u32) {
        if !self.last_cut.is_past(now, self.rtt) {
            return;
        }
        self.last_cut = Moment::of(now);
        self.starting = false;
        let cut = u64::from(self.window) * factor_256.max(128) / 256;
        self.window = u32::try_from(cut).unwrap_or(u32::MAX).max(least.min(self.window));
    }

    fn follow(&mut self, acked: &Acked) {
        let Some(RoundTrip { least, delay, standing }) = acked.rtt else {
            return;
        };
        let nanos = |d: Duration| u32::try_from(d.as_nanos()).unwrap_or(u32::MAX);
        self.rtt = nanos(least + delay);
        let (delay, standing) = (nanos(delay), nanos(standing));
        // An eighth: about as many samples as a window of feedback has.
        self.delay = self.delay - self.delay / 8 + delay / 8;
        let target = self.target(nanos(least.max(LEAST_TARGET)));
        let marked = acked.ce > 0;
        if delay <= target || (standing <= target && !marked) {
            // What the receiver allows says nothing of what the network would carry.
            if !acked.limited || self.is_capped() {
                return;
            }
            // One segment a round trip at the target, eight with an empty queue.
            let emptiness = u64::from(target.saturating_sub(delay)) * 7 / u64::from(target) + 1;
            let grown = acked.bytes * u64::from(self.segment) * emptiness / u64::from(self.window.max(1));
            // Until anything speaks against it, and while the queue is nearly empty, it doubles in a round trip.
            let grown = if self.starting && delay <= target / 4 { grown.max(acked.bytes) } else { grown };
            self.window = (u64::from(self.window) + grown).min(MOST) as u32;
        } else if marked || self.delay > target {
            // The share of the delay that is above the target, half of it at most.
            let factor = u64::from(target) * 256 / u64::from(self.delay.max(target));
            let least = if marked { self.least() } else { FIRST as u32 * u32::from(self.segment) };
            self.cut(acked.now, ((256 + factor) / 2).min(240), least);
        }
    }
}

impl Congestion for DelayEcn {
    fn on_acked(&mut self, acked: &Acked) {
        self.follow(acked);
        self.set_pace();
    }

    fn on_lost(&mut self, now: Instant, bytes: u64) {
        // What the queue had no room for is sent less, which tells a full queue from a stray loss; at most half in a round trip.
        if self.last_loss.is_past(now, self.rtt) {
            self.last_loss = Moment::of(now);
            self.starting = false;
            self.floor = (self.window / 2).max(self.least());
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.window = self.window.saturating_sub(bytes).max(self.floor.min(self.window));
    }

    fn on_timeout(&mut self) {
        self.window = self.least();
        self.starting = false;
    }

    fn on_share(&mut self, bytes: u32) {
        if self.share != bytes {
            self.share = bytes;
            self.set_pace();
        }
    }

    fn window(&self) -> u64 {
        u64::from(match self.share {
            0 => self.window,
            share => self.window.min(share.max(self.least())),
        })
    }

    #[inline]
    fn on_sent(&mut self, now: Instant, bytes: u32) {
        self.pace.sent(now, bytes, u32::from(self.segment));
    }

    #[inline]
    fn is_early(&self, now: Instant) -> bool {
        self.pace.is_early(now)
    }

    fn look_at(&self) -> Instant {
        self.pace.look_at(u32::from(self.segment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_micros(100);

    fn acked(at: u64, delay: u64, ce: u32) -> Acked {
        Acked {
            now: Instant::from_nanos(at * 1_000),
            bytes: 64_000,
            rtt: Some(RoundTrip {
                least: BASE,
                delay: Duration::from_micros(delay),
                standing: Duration::from_micros(delay),
            }),
            ce,
            limited: true,
        }
    }

    /// One whose beginning is over, with a window of so many segments.
    fn settled(segments: u32) -> DelayEcn {
        DelayEcn { starting: false, window: segments * 1_000, ..DelayEcn::new(1_000, true) }
    }

    #[test]
    fn it_begins_small_and_doubles_until_something_speaks_against_it() {
        let mut c = DelayEcn::new(1_000, true);
        assert_eq!(c.window(), 16_000);
        c.on_acked(&Acked { bytes: 16_000, ..acked(1, 0, 0) });
        assert_eq!(c.window(), 32_000);
        c.on_acked(&Acked { bytes: 32_000, ..acked(2, 60, 0) });
        assert!(c.window() < 40_000, "there is a queue: {}", c.window());
        let mut c = DelayEcn::new(1_000, true);
        c.on_lost(Instant::from_nanos(1), 1_000);
        c.on_acked(&Acked { bytes: 15_000, ..acked(1, 0, 0) });
        assert_eq!(c.window(), 23_000, "eight segments, no doubling");
    }

    #[test]
    fn an_empty_queue_lets_it_grow_even_with_ecn() {
        let mut c = settled(64);
        c.on_acked(&acked(1, 0, 3));
        assert_eq!(c.window(), 64_000 + 8_000, "a window acknowledged, eight segments");
        let before = c.window();
        c.on_acked(&Acked { limited: false, ..acked(2, 0, 0) });
        assert_eq!(c.window(), before, "nobody knows whether more would have fitted");
        for i in 0..10_000 {
            c.on_acked(&Acked { bytes: 8 << 20, ..acked(i, 0, 0) });
        }
        assert_eq!(c.window(), MOST);
    }

    #[test]
    fn round_trips_of_any_length_are_borne() {
        for seconds in [3, 4, 5, 1_000_000] {
            let long = Duration::from_secs(seconds);
            let mut c = settled(2);
            for (delay, standing) in [(Duration::ZERO, Duration::ZERO), (long, long), (long, Duration::ZERO)]
            {
                for ce in [0, 1] {
                    c.on_acked(&Acked {
                        rtt: Some(RoundTrip { least: long, delay, standing }),
                        ..acked(1, 0, ce)
                    });
                }
            }
            assert!(c.window() >= 2_000);
        }
    }

    #[test]
    fn the_receivers_word_caps_it_and_what_it_caps_does_not_grow() {
        let mut c = settled(64);
        c.on_share(10_000);
        assert_eq!(c.window(), 10_000);
        c.on_acked(&acked(1, 0, 0));
        c.on_share(1);
        assert_eq!(c.window(), 2_000, "never below two segments");
        c.on_share(0);
        assert_eq!(c.window(), 64_000, "as it was");
        c.on_share(100_000);
        c.on_acked(&acked(2, 0, 0));
        assert_eq!(c.window(), 72_000, "below the cap it grows");
    }

    #[test]
    fn delay_with_ecn_cuts_once_a_round_trip_and_at_most_by_half() {
        let mut c = settled(64);
        c.on_acked(&acked(1_000, 200, 1));
        let once = c.window();
        // The smoothed delay is not above the target yet: a sixteenth.
        assert_eq!(once, 60_000);
        c.on_acked(&acked(1_010, 200, 1));
        assert_eq!(c.window(), once, "within the same round trip");
        for i in 0..100 {
            let before = c.window();
            c.on_acked(&acked(2_000 + 1_000 * i, 10_000, 1));
            assert!(c.window() >= before / 2);
        }
        assert_eq!(c.window(), 2_000, "never below two segments");
    }

    #[test]
    fn delay_without_marks_has_to_stand_and_leaves_the_first_window() {
        let mut c = settled(64);
        let stalls = |at, standing| {
            let rtt = RoundTrip {
                least: BASE,
                delay: Duration::from_micros(5_000),
                standing: Duration::from_micros(standing),
            };
            Acked { rtt: Some(rtt), ..acked(at, 0, 0) }
        };
        for i in 0..100 {
            c.on_acked(&stalls(10_000 * i, 50));
        }
        assert!(c.window() > 64_000, "one that gets through shows that there is no queue: {}", c.window());
        for i in 100..200 {
            c.on_acked(&stalls(10_000 * i, 5_000));
        }
        assert_eq!(c.window(), 16_000, "a queue is told by marks or losses");
        c.on_acked(&Acked { ce: 1, ..stalls(3_000_000, 50) });
        let cut = c.window();
        assert!((8_000..8_300).contains(&cut), "as by these: {cut}");
        c.on_acked(&stalls(4_000_000, 5_000));
        assert_eq!(c.window(), cut, "what is below stays there");
    }

    #[test]
    fn the_target_is_higher_for_a_small_window() {
        let target = |segments: u32| settled(segments).target(100_000);
        // 200/256 of it for two segments, half of that for eight.
        assert_eq!((target(2), target(8)), (178_000, 139_000));
        assert!(target(2_000) < 104_000 && target(2_000) >= 100_000);
        // So the same delay lets a small window grow and cuts a large one.
        let (mut small, mut large) = (settled(2), settled(64));
        small.on_acked(&acked(1_000, 125, 1));
        large.on_acked(&acked(1_000, 125, 1));
        assert!(small.window() > 2_000 && large.window() < 64_000);
    }

    #[test]
    fn a_window_over_a_long_way_has_a_pace() {
        /// How long a window takes to leave, for segments of 1,000 bytes.
        fn takes(mut c: DelayEcn, rtt: u64) -> Duration {
            let least = Duration::from_micros(rtt);
            let trip = RoundTrip { least, delay: Duration::ZERO, standing: Duration::ZERO };
            c.on_acked(&Acked { rtt: Some(trip), limited: false, ..acked(1, 0, 0) });
            let begin = Instant::from_nanos(1_000_000_000);
            let mut now = begin;
            for _ in 0..c.window() / 1_000 {
                if c.is_early(now) {
                    now = c.look_at();
                }
                c.on_sent(now, 1_000);
            }
            now.saturating_since(begin)
        }
        let long = takes(settled(1_024), 10_000);
        assert!((7_500..8_200).contains(&long.as_micros()), "four fifths of the round trip: {long:?}");
        for (c, rtt, why) in [
            (settled(1_024), 999, "too short a way"),
            (settled(127), 10_000, "too few"),
            (DelayEcn::new(1_000, true), 10_000, "nothing has spoken against it"),
            (DelayEcn { window: MOST as u32, ..settled(1) }, 10_000, "the largest"),
            (DelayEcn { paced: false, ..settled(1_024) }, 10_000, "switched off"),
        ] {
            assert_eq!(takes(c, rtt), Duration::ZERO, "{why}");
        }
        let mut shared = settled(1_024);
        shared.on_share(256_000);
        let long = takes(shared, 10_000);
        assert!((7_000..8_200).contains(&long.as_micros()), "what the receiver allows: {long:?}");
        let mut c = settled(1_024);
        let trip =
            RoundTrip { least: Duration::from_millis(10), delay: Duration::ZERO, standing: Duration::ZERO };
        c.on_acked(&Acked { rtt: Some(trip), ..acked(1, 0, 0) });
        let mut less = c;
        less.on_share(256_000);
        for c in [&mut c, &mut less] {
            (0..100).for_each(|_| c.on_sent(Instant::from_nanos(1_000_000), 1_000));
            assert!(c.is_early(Instant::from_nanos(1_000_000)));
        }
        assert!(less.look_at() > c.look_at(), "at once when the receiver says less");
    }

    #[test]
    fn moments_tell_whether_a_round_trip_has_passed() {
        let at = |micros: u64| Instant::from_nanos(micros << 10);
        assert!(Moment::default().is_past(at(0), u32::MAX), "it never happened");
        let m = Moment::of(at(100));
        assert!(!m.is_past(at(100), 2 << 10) && !m.is_past(at(101), 2 << 10) && m.is_past(at(102), 2 << 10));
        let m = Moment::of(at((1 << 32) - 1));
        assert!(!m.is_past(at(1 << 32), 3 << 10) && m.is_past(at((1 << 32) + 3), 3 << 10), "around the end");
    }

    #[test]
    fn losses_and_time_outs() {
        let mut c = settled(64);
        c.rtt = 100_000;
        let at = |us: u64| Instant::from_nanos(us * 1_000);
        c.on_lost(at(1), 1_000);
        assert_eq!(c.window(), 63_000, "what was lost");
        c.on_lost(at(2), 50_000);
        assert_eq!(c.window(), 32_000, "at most half in a round trip");
        c.on_lost(at(100), 50_000);
        assert_eq!(c.window(), 32_000);
        c.on_lost(at(101), 1_000);
        assert_eq!(c.window(), 31_000, "another round trip");
        c.on_timeout();
        assert_eq!(c.window(), 2_000);
    }
}

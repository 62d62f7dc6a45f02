//! Counting over time: how many, and how evenly.

use crate::rendezvous::message::{RxReport, Series};
use roce_proto::time::Instant;
use std::time::Duration;

/// Length of the finest interval.
const FINEST: Duration = Duration::from_millis(10);

/// Intervals kept at the most; beyond, neighbours are merged and the interval doubles.
const MAX_INTERVALS: usize = 1024;

/// Intervals of a [`Series`] at the most: with numbers of eight digits they take a kilobyte.
pub const MAX_SERIES: usize = 128;

/// Counts events and remembers how many fell into each interval.
#[derive(Clone, Debug)]
pub struct Meter {
    count: u64,
    /// Events at the time of the first one.
    first_burst: u64,
    first: Option<Instant>,
    last: Instant,
    /// The longest time between two events.
    pause: Duration,
    interval: Duration,
    /// Complete intervals, from the first event on.
    closed: Vec<u64>,
    current: u64,
    current_end: Instant,
}

impl Meter {
    /// Has seen nothing.
    pub fn new() -> Meter {
        Meter {
            count: 0,
            first_burst: 0,
            first: None,
            last: Instant::ZERO,
            pause: Duration::ZERO,
            interval: FINEST,
            closed: Vec::with_capacity(MAX_INTERVALS),
            current: 0,
            current_end: Instant::ZERO,
        }
    }

    /// `n` events at `now`; an earlier time than that of the last event counts as the same.
    #[inline]
    pub fn add(&mut self, n: u64, now: Instant) {
        if n == 0 {
            return;
        }
        if self.first.is_none() {
            self.first = Some(now);
            self.current_end = now + self.interval;
            self.last = now;
        }
        while now >= self.current_end {
            self.close();
        }
        self.current += n;
        self.count += n;
        if self.first.is_some_and(|first| now <= first) {
            self.first_burst = self.count;
        }
        self.pause = self.pause.max(now.saturating_since(self.last));
        self.last = self.last.max(now);
    }

    #[cold]
    fn close(&mut self) {
        self.closed.push(self.current);
        self.current = 0;
        if self.closed.len() >= MAX_INTERVALS {
            self.closed = self.closed.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.interval *= 2;
        }
        self.current_end += self.interval;
    }

    /// Events so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The time of the last event.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// From the first to the last event.
    pub fn elapsed(&self) -> Duration {
        self.first.map_or(Duration::ZERO, |first| self.last.saturating_since(first))
    }

    /// What was seen, without drops and sends.
    pub fn report(&self) -> RxReport {
        let mut rates: Vec<f64> =
            self.closed.iter().map(|&n| n as f64 / self.interval.as_secs_f64()).collect();
        rates.sort_by(f64::total_cmp);
        let some = !rates.is_empty();
        RxReport {
            messages: self.count,
            first_burst: self.first_burst,
            elapsed_ns: self.elapsed().as_nanos() as u64,
            longest_pause_ns: self.pause.as_nanos() as u64,
            interval_min: rates.first().copied().unwrap_or(0.0),
            interval_p1: percentile(&rates, 1.0),
            interval_p50: percentile(&rates, 50.0),
            interval_ns: if some { self.interval.as_nanos() as u64 } else { 0 },
            intervals: rates.len() as u32,
            drops: Vec::new(),
            sent: 0,
            series: None,
        }
    }

    /// What came in each interval; so coarse that it fits a control message.
    pub fn series(&self) -> Series {
        let (mut counts, mut interval) = (self.closed.clone(), self.interval);
        while counts.len() > MAX_SERIES {
            // The last one may stand alone: an interval that is not over.
            counts = counts.chunks_exact(2).map(|pair| pair.iter().sum()).collect();
            interval *= 2;
        }
        let start_ns = self.first.map_or(0, Instant::as_nanos);
        Series { start_ns, interval_ns: interval.as_nanos() as u64, counts }
    }
}

impl Default for Meter {
    fn default() -> Self {
        Meter::new()
    }
}

/// The nearest-rank percentile of sorted values; 0 of none.
pub fn percentile(sorted: &[f64], p: f64) -> f64 {
    let rank = (p / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn the_longest_pause_is_between_two_events() {
        let mut meter = Meter::new();
        meter.add(1, at(500));
        assert_eq!(meter.report().longest_pause_ns, 0, "nothing was awaited before");
        for ms in [501, 531, 532] {
            meter.add(1, at(ms));
        }
        assert_eq!(meter.report().longest_pause_ns, 30_000_000);
    }

    #[test]
    fn an_even_stream_has_even_intervals() {
        let mut meter = Meter::new();
        for ms in 0..1000 {
            meter.add(5, at(ms));
        }
        let report = meter.report();
        assert_eq!(report.messages, 5000);
        assert_eq!(report.elapsed_ns, 999_000_000);
        assert_eq!(report.longest_pause_ns, 1_000_000);
        assert_eq!(report.intervals, 99);
        assert_eq!(report.interval_ns, 10_000_000);
        for rate in [report.interval_min, report.interval_p1, report.interval_p50] {
            assert!((rate - 5000.0).abs() < 1e-6, "{rate}");
        }
    }

    #[test]
    fn a_pause_shows_in_the_minimum_and_not_in_the_median() {
        let mut meter = Meter::new();
        for ms in (0..500).chain(540..1000) {
            meter.add(1, at(ms));
        }
        let report = meter.report();
        assert_eq!(report.interval_min, 0.0);
        assert!((report.interval_p50 - 1000.0).abs() < 1e-6);
        assert_eq!(report.messages, 960);
    }

    #[test]
    fn long_runs_merge_intervals_and_lose_nothing() {
        let mut meter = Meter::new();
        for ms in 0..60_000 {
            meter.add(2, at(ms));
        }
        assert!(meter.closed.len() < MAX_INTERVALS);
        let inside: u64 = meter.closed.iter().sum();
        assert_eq!(inside + meter.current, 120_000);
        let report = meter.report();
        assert!((report.interval_min - 2000.0).abs() < 1.0, "{report:?}");
    }

    #[test]
    fn a_series_is_short_and_has_every_whole_interval() {
        let mut meter = Meter::new();
        for ms in 0..5000 {
            meter.add(3, at(7 + ms));
        }
        let series = meter.series();
        // 499 whole intervals of 10 ms, as 124 of 40 ms.
        assert_eq!((series.start_ns, series.interval_ns), (7_000_000, 40_000_000));
        assert_eq!(series.counts, vec![120; 124]);
        assert!(Meter::new().series().counts.is_empty());
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 1.0), 1.0);
        assert_eq!(percentile(&values, 50.0), 50.0);
        assert_eq!(percentile(&values, 99.0), 99.0);
        assert_eq!(percentile(&values[..3], 50.0), 2.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn what_came_with_the_first_is_the_first_burst() {
        let mut meter = Meter::new();
        for (n, ms) in [(0, 3), (7, 5), (2, 5), (5, 6), (9, 6)] {
            meter.add(n, at(ms));
        }
        let report = meter.report();
        assert_eq!((report.messages, report.first_burst, report.elapsed_ns), (23, 9, 1_000_000));
    }

    #[test]
    fn nothing_seen_is_nothing_reported() {
        let report = Meter::new().report();
        assert_eq!((report.messages, report.elapsed_ns, report.intervals), (0, 0, 0));
    }
}

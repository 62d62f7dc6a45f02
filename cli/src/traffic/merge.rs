//! One result from those of several ends that ran side by side.

use super::meter::{MAX_SERIES, percentile};
use super::session::TestResult;
use crate::rendezvous::message::{RxReport, Series, TestSpec};
use std::collections::BTreeMap;

/// Part `index` of `total` in `parts` parts that differ by one at the most.
pub fn share(total: u64, index: usize, parts: usize) -> u64 {
    let (parts, index) = (parts.max(1) as u64, index as u64);
    total / parts + u64::from(index < total % parts)
}

/// What one of `lanes` ends has to do so that all together do `spec`: its share of messages and of the rate.
pub fn part_of(spec: &TestSpec, index: usize, lanes: usize) -> TestSpec {
    TestSpec {
        iters: spec.iters.map(|n| share(n, index, lanes)),
        rate: spec.rate.map(|n| share(n, index, lanes).max(1)),
        ..spec.clone()
    }
}

/// The result of a test from those of its ends; `None` of none.
pub fn results(parts: &[TestResult]) -> Option<TestResult> {
    let first = parts.first()?;
    let sum = |of: fn(&TestSpec) -> Option<u64>| parts.iter().map(|p| of(&p.spec)).sum::<Option<u64>>();
    let spec = TestSpec { iters: sum(|s| s.iters), rate: sum(|s| s.rate), ..first.spec.clone() };
    Some(TestResult {
        spec,
        server: reports(&parts.iter().map(|p| &p.server).collect::<Vec<_>>()),
        client: reports(&parts.iter().map(|p| &p.client).collect::<Vec<_>>()),
        rtt: None,
        unanswered: parts.iter().map(|p| p.unanswered).sum(),
        untold: parts.iter().find_map(|p| p.untold),
        unsaid: parts.iter().find_map(|p| p.unsaid),
        failure: parts.iter().find_map(|p| p.failure.clone()),
        interrupted: parts.iter().any(|p| p.interrupted),
        // They have one link.
        link_lost: parts.iter().map(|p| p.link_lost).max().unwrap_or(0),
        reliable: None,
    })
}

/// Intervals of a merged result at the most: more than twice those of one end, which may begin at another time.
const MAX_CELLS: u64 = 4 * MAX_SERIES as u64;

/// What several ends received, as if it were one: times from the first message of any to the last of any.
fn reports(parts: &[&RxReport]) -> RxReport {
    let mut drops = BTreeMap::new();
    for (reason, n) in parts.iter().flat_map(|p| &p.drops) {
        let sum: &mut u64 = drops.entry(reason.clone()).or_insert(0);
        *sum = sum.saturating_add(*n);
    }
    let mut merged = RxReport {
        messages: parts.iter().fold(0, |sum, p| sum.saturating_add(p.messages)),
        sent: parts.iter().fold(0, |sum, p| sum.saturating_add(p.sent)),
        drops: drops.into_iter().collect(),
        ..RxReport::default()
    };
    let timed: Vec<(&Series, u64)> = parts
        .iter()
        .filter(|p| p.messages > 0)
        .filter_map(|p| Some((p.series.as_ref()?, p.elapsed_ns)))
        .collect();
    let Some(start) = timed.iter().map(|(s, _)| s.start_ns).min() else { return merged };
    let end = timed.iter().map(|(s, elapsed)| s.start_ns.saturating_add(*elapsed)).max().unwrap_or(start);
    merged.elapsed_ns = end - start;
    let first = parts.iter().filter(|p| p.series.as_ref().is_some_and(|s| s.start_ns == start));
    merged.first_burst = first.fold(0, |sum, p| sum.saturating_add(p.first_burst));
    // The numbers are another process's: however short it says that its intervals are, there are only so many.
    let longest = timed.iter().map(|(s, _)| s.interval_ns).max().unwrap_or(0);
    let interval = if longest == 0 { 0 } else { longest.max((end - start).div_ceil(MAX_CELLS)) };
    let mut rates = rates(&timed, start, end, interval);
    rates.sort_by(f64::total_cmp);
    merged.interval_min = rates.first().copied().unwrap_or(0.0);
    merged.interval_p1 = percentile(&rates, 1.0);
    merged.interval_p50 = percentile(&rates, 50.0);
    merged.interval_ns = if rates.is_empty() { 0 } else { interval };
    merged.intervals = rates.len() as u32;
    merged
}

/// Messages per second in each whole interval from `start` to `end`: what an end counted in an interval of its own is shared
/// out evenly over the time of that.
fn rates(timed: &[(&Series, u64)], start: u64, end: u64, interval: u64) -> Vec<f64> {
    let Some(cells) = (end - start).checked_div(interval) else { return Vec::new() };
    let mut counts = vec![0.0; cells as usize];
    for (series, _) in timed.iter().filter(|(s, _)| s.interval_ns > 0) {
        let mut from = series.start_ns - start;
        for &n in &series.counts {
            let to = from.saturating_add(series.interval_ns);
            let mut at = from;
            while at < to {
                let cell = at / interval;
                let until = (cell + 1).saturating_mul(interval).min(to);
                if let Some(count) = counts.get_mut(cell as usize) {
                    *count += n as f64 * (until - at) as f64 / series.interval_ns as f64;
                }
                at = until;
            }
            from = to;
        }
    }
    counts.iter().map(|n| n / (interval as f64 / 1e9)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::rendezvous::message::TestKind;
    use crate::traffic::session::Side;

    fn spec() -> TestSpec {
        TestSpec {
            kind: TestKind::Bw,
            size: 64,
            qps: 1,
            iters: Some(10),
            duration_ms: None,
            tx_depth: 1,
            rx_depth: 1,
            bidirectional: false,
            rate: Some(5),
        }
    }

    #[test]
    fn parts_add_up() {
        let parts: Vec<TestSpec> = (0..3).map(|i| part_of(&spec(), i, 3)).collect();
        assert_eq!(parts.iter().map(|p| p.iters.unwrap()).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(parts.iter().map(|p| p.rate.unwrap()).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!((share(2, 2, 3), share(7, 0, 1)), (0, 7));
    }

    #[test]
    fn nothing_that_a_peer_says_of_its_intervals_takes_more_than_a_moment() {
        let odd = [0, 1, 2, 10_000_000, u64::MAX / 2, u64::MAX];
        for start_ns in odd {
            for interval_ns in odd {
                for elapsed_ns in odd {
                    let report = RxReport {
                        messages: u64::MAX,
                        sent: u64::MAX,
                        elapsed_ns,
                        drops: vec![("icrc".to_owned(), u64::MAX)],
                        series: Some(Series { start_ns, interval_ns, counts: vec![u64::MAX; 3] }),
                        ..RxReport::default()
                    };
                    let good = part(100, &[10, 10], &[("icrc", 1)]);
                    let merged = reports(&[&report, &good, &report]);
                    assert!(u64::from(merged.intervals) <= MAX_CELLS, "{report:?}");
                    assert_eq!((merged.messages, merged.drops[0].1), (u64::MAX, u64::MAX));
                }
            }
        }
    }

    fn part(start_ms: u64, counts: &[u64], drops: &[(&str, u64)]) -> RxReport {
        let total: u64 = counts.iter().sum();
        RxReport {
            messages: total,
            first_burst: counts[0] / 2,
            elapsed_ns: counts.len() as u64 * 10_000_000,
            sent: total + 1,
            drops: drops.iter().map(|(r, n)| ((*r).to_owned(), *n)).collect(),
            series: Some(Series {
                start_ns: start_ms * 1_000_000,
                interval_ns: 10_000_000,
                counts: counts.to_vec(),
            }),
            ..RxReport::default()
        }
    }

    #[test]
    fn ends_that_overlap_are_added_where_they_do() {
        // The second begins half an interval later: 20 ms with both, 5 ms with one on either side.
        let (a, b) =
            (part(100, &[10, 10, 10], &[("icrc", 1)]), part(105, &[20, 20, 20], &[("icrc", 2), ("qkey", 1)]));
        let merged = reports(&[&a, &b]);
        assert_eq!((merged.messages, merged.sent, merged.elapsed_ns), (90, 92, 35_000_000));
        // Of the end that began: the other's came later.
        assert_eq!(merged.first_burst, 5);
        assert_eq!(merged.drops, [("icrc".to_owned(), 3), ("qkey".to_owned(), 1)]);
        // Three whole intervals: 10 + 10, 10 + 20, 10 + 20 messages in 10 ms each.
        assert_eq!(merged.intervals, 3);
        assert!((merged.interval_min - 2000.0).abs() < 1e-6, "{merged:?}");
        assert!((merged.interval_p50 - 3000.0).abs() < 1e-6, "{merged:?}");
    }

    #[test]
    fn an_end_that_received_nothing_changes_no_time() {
        let merged = reports(&[&part(100, &[10, 10], &[]), &RxReport::default()]);
        assert_eq!((merged.messages, merged.elapsed_ns, merged.intervals), (20, 20_000_000, 2));
        assert_eq!(reports(&[]), RxReport::default());
    }

    #[test]
    fn the_test_is_the_sum_of_its_parts() {
        let one = |i| TestResult {
            spec: part_of(&spec(), i, 2),
            server: part(0, &[3], &[]),
            client: RxReport::default(),
            rtt: None,
            unanswered: 0,
            untold: (i == 1).then_some(Side::Client),
            unsaid: (i == 1).then_some(Side::Client),
            interrupted: i == 1,
            failure: (i == 1).then(|| Error::failed("gone")),
            link_lost: 1,
            reliable: None,
        };
        let merged = results(&[one(0), one(1)]).unwrap();
        assert_eq!((merged.spec.iters, merged.spec.rate), (Some(10), Some(5)));
        assert_eq!((merged.server.messages, merged.interrupted, merged.link_lost), (6, true, 1));
        assert!(merged.known(Side::Client).is_none() && merged.known(Side::Server).is_some());
        assert_eq!((merged.sent(Side::Client), merged.sent(Side::Server)), (None, Some(8)));
        assert_eq!(merged.whole().unwrap_err().message(), "gone");
        assert!(results(&[]).is_none());
    }
}

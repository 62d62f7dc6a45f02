//! What forward error correction is worth over a long link: 25 ms there and back, 100 Gb/s, one message at a time. Figures of the simulator,
//! where only losses cost time.

use fec::policy::Protection;
use roce_proto::transport::{Algorithm, Config, Fec, Limits, Protect};
use roce_proto::wire::shim::{Kind, Semantics};
use std::time::Duration;
use testbed_impair::{Loss, Rate};
use testbed_sim::single::Single;
use testbed_sim::{Pattern, Report, Trace, simulate};

const GRADIENT: Semantics = Semantics { class: 1, priority: 8, step: 0, stage: 0, tolerance: 0, sync: false };
const ACTIVATION: Semantics = Semantics { class: 2, ..GRADIENT };

fn run(messages: usize, size: u64, loss: Loss, protect: Protect, semantics: Semantics) -> Report {
    let rate = Rate { bits_per_second: 100_000_000_000, queue: 64_000_000, mark_from: None };
    let link = testbed_impair::Config {
        delay: Duration::from_micros(12_500),
        rate: Some(rate),
        loss,
        ..Default::default()
    };
    let limits = Limits { window: 8_192, ..Single::default().config.limits };
    let config = Config {
        congestion: Algorithm::Fixed(32 << 20),
        fec: Fec { protect, ..Fec::default() },
        limits,
        ..Single::default().config
    };
    let pattern = Pattern::PingPong;
    let single = Single { pattern, messages, size, semantics, link, config, ..Single::default() };
    let (report, verdict) = simulate(&single.scenario(), Trace::hash());
    assert_eq!(verdict, Ok(()));
    assert_eq!(report.succeeded, 2 * messages as u64);
    report
}

fn p99(report: &Report) -> f64 {
    report.quantile(0.99).expect("sends").as_secs_f64()
}

/// Parity packets for each packet of data.
fn cost(report: &Report) -> f64 {
    report.sent[Kind::Parity as usize] as f64 / report.sent[Kind::Data as usize] as f64
}

/// At a loss of 0.1 %, by itself and in bursts of 8: the 99th percentile of completion is within 1.15 of the lossless one, and what it
/// exceeds that by is at least five times less than without parity.
#[test]
fn the_99th_percentile_is_nearly_that_without_losses() {
    for (loss, size) in [(Loss::Random(1e-3), 262_144), (Loss::bursts(1e-3, 8.0).expect("sound"), 1 << 20)] {
        let run = |loss, protect| run(200, size, loss, protect, ACTIVATION);
        let lossless = p99(&run(Loss::None, Protect::Nothing));
        let (bare, protected) = (run(loss, Protect::Nothing), run(loss, Protect::ByTag));
        let what = format!(
            "{loss:?}, {size} bytes: lossless {:.2} ms, sent again {:.2} ms, protected {:.2} ms, {:.1} % parity",
            1e3 * lossless,
            1e3 * p99(&bare),
            1e3 * p99(&protected),
            100.0 * cost(&protected)
        );
        println!("{what}; recovered {}, sent again {}", protected.repaired, protected.retransmitted);
        assert!(p99(&protected) <= 1.15 * lossless, "{what}");
        assert!(p99(&bare) - lossless >= 5.0 * (p99(&protected) - lossless), "{what}");
    }
}

/// Of a mix of which half is protected by its tags: uniform protection by (32,8) is no better for that half, and costs more than twice the
/// parity.
#[test]
fn what_tags_ask_for_costs_less_than_protecting_alike() {
    let loss = Loss::Random(1e-3);
    let uniform = Protect::Everything(Protection { data: 32, parity: 8, depth: 1 });
    let run = |protect, semantics| run(150, 1 << 20, loss, protect, semantics);
    let (tagged, alike) = (run(Protect::ByTag, GRADIENT), run(uniform, GRADIENT));
    let untagged = run(Protect::ByTag, Semantics::default());
    let what = format!(
        "by tags {:.2} ms with {:.1} % parity, alike {:.2} ms with {:.1} %",
        1e3 * p99(&tagged),
        100.0 * cost(&tagged),
        1e3 * p99(&alike),
        100.0 * cost(&alike)
    );
    println!("{what}");
    assert!(p99(&tagged) <= 1.01 * p99(&alike), "{what}");
    let parity = |report: &Report| report.sent[Kind::Parity as usize];
    assert_eq!(parity(&untagged), 0);
    // Both halves alike have twice what one has.
    let all_alike = 2 * parity(&alike);
    assert!(2 * (parity(&tagged) + parity(&untagged)) <= all_alike, "{what}");
}

//! What forward error correction is worth over a long link: small cells of `spraywire sim --study fec`. Figures of the simulator, where only losses
//! cost time.

use testbed_impair::Loss;
use testbed_sim::study::fec::{
    ACTIVATION, BULK, BY_TAG, Chain, Completion, FAST, GRADIENT, LOSS, Load, Mixed, SLOW, Step, goodputs,
    losses, sent,
};
use testbed_sim::study::residual::Residual;

/// At a loss of 0.1 %, by itself and in bursts of 8: the 99th percentile of completion is within 1.15 of the lossless one, what it
/// exceeds that by is a fifth or less of what it is without parity, and half of the time that a time-out of three round trips gives.
#[test]
fn the_99th_percentile_is_nearly_that_without_losses() {
    for ((name, loss), (size, messages)) in losses().into_iter().zip([(262_144, 200), (1 << 20, 150)]) {
        let (completion, verdict) = Completion::run(FAST, (size, messages), loss, 1);
        assert_eq!(verdict, Ok(()));
        println!("{name}, {size} bytes: {completion:?}");
        assert!(completion.gain().is_some(), "enough are hit: {completion:?}");
        assert!(completion.repaired.0 > 0 && completion.is_met(), "{completion:?}");
    }
}

/// The same where a message takes longer than a round trip: of its beginning nothing is protected, as what is lost there is sent again in time.
#[test]
fn the_beginning_of_a_long_message_has_no_parity_and_is_not_late() {
    let (_, bursts) = losses()[1];
    let load = |(size, messages), loss| {
        let chains = vec![Chain { semantics: GRADIENT, size, messages }];
        let load = Load { chains, rate: SLOW, loss, seed: 1 };
        let (report, verdict) = load.run(&BY_TAG);
        assert_eq!(verdict, Ok(()));
        let (p50, p99) = (report.quantile(0.5).unwrap(), load.p99(&report, 0));
        (sent(&report, GRADIENT.class).cost(), p50, p99, report.retransmitted)
    };
    // A message of 4 MiB takes 35 ms on the wire and 25 ms there and back.
    let (cost, _, p99, _) = load((4 << 20, 80), bursts);
    assert!(cost < 0.1 && p99.as_millis() < 64, "{cost} {p99:?}");
    // With 16 MiB for 25 ms of 1 Gb/s, a fifth has some.
    let alone = Loss::Random(LOSS);
    let ((short, ..), (long, p50, _, again)) = (load((1 << 20, 12), alone), load((16 << 20, 12), alone));
    assert!(long < short / 2.0 && again > 10, "{long} of {short}, {again} sent again");
    // 16 MiB take 138 ms on the wire, and their parity some.
    assert!((160..172).contains(&p50.as_millis()), "{p50:?}");
}

/// Uniform protection by (32,8) or (8,2) is no better for the protected classes of a mix, and costs more than twice the parity.
#[test]
fn what_tags_ask_for_costs_less_than_protecting_alike() {
    for (name, loss) in losses() {
        let ([tagged, alike @ ..], verdict) = Mixed::run(loss, 1, 1);
        assert_eq!(verdict, Ok(()));
        println!("{name}: {tagged:?}, {alike:?}");
        assert!(tagged.parity_bytes > 0);
        for alike in &alike {
            assert!(tagged.is_met(alike), "{name}: {tagged:?}, {alike:?}");
        }
    }
}

/// Through the engine as many groups are not repaired as are computed for the code alone, see `docs/protocol.md`, section 9: with bursts of 8 and without
/// interleaving 2.85 %, 8 deep 0.53 %.
#[test]
fn as_many_groups_fail_as_computed() {
    for (depth, groups, least) in [(1, 3_200, 50), (8, 6_400, 10)] {
        let (residual, verdict) = Residual::run((true, depth), groups, 1);
        assert_eq!(verdict, Ok(()));
        println!("depth {depth}: {residual:?}");
        assert!(residual.groups >= groups && residual.failed >= least && residual.is_met(), "{residual:?}");
    }
    // So deep that of these 0.2 fail. Their parity comes long after the first loss of a block is known of, and is waited for.
    let (deep, verdict) = Residual::run((true, 32), 3_200, 1);
    assert_eq!(verdict, Ok(()));
    assert!(deep.failed <= 2, "{deep:?}");
}

/// What has no tag, and gradients that can wait, have no parity, not a byte.
#[test]
fn what_asks_for_nothing_has_no_parity() {
    let chain = |semantics| Chain { semantics, size: 1 << 20, messages: 10 };
    let chains = vec![chain(Default::default()), chain(BULK)];
    let (report, verdict) = Load { chains, rate: FAST, loss: Loss::Random(LOSS), seed: 1 }.run(&BY_TAG);
    assert_eq!(verdict, Ok(()));
    for class in 0..4 {
        assert_eq!((sent(&report, class).parity, sent(&report, class).parity_bytes), (0, 0));
    }
    assert!(sent(&report, 0).fresh > 2_000);
}

/// Parity takes its share of a narrow link, and next to nothing else is lost.
#[test]
fn goodput_is_what_parity_leaves() {
    let (shares, verdict) = goodputs(100, 1);
    assert_eq!(verdict, Ok(()));
    assert!(shares.iter().all(|share| *share >= 0.97), "{shares:?}");
    assert!(shares.iter().all(|share| *share <= 1.01), "it cannot be more: {shares:?}");
}

/// Losses rise a hundredfold and fall again: nothing is left unrepaired from the tenth round trip on, and a hundred after it there is as little
/// parity as before.
#[test]
fn strength_follows_a_step() {
    for (semantics, residual, data) in [(GRADIENT, 1e-4, 32), (ACTIVATION, 1e-5, 16)] {
        let (step, verdict) = Step::run(semantics, residual, data, 1);
        assert_eq!(verdict, Ok(()));
        println!("{step:?}");
        assert!(step.during > 2.0 * step.before && step.is_met(), "{step:?}");
    }
}

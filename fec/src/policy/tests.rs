use super::*;
use std::ops::RangeInclusive;

const FAR: Network = Network { loss: 1e-2, burst: 1.0, round_trip: 25_000_000 };

fn gradient(segments: u32) -> Message {
    Message { class: Class::DataParallel, priority: 8, segments, ..Message::default() }
}

fn activation(stage: u8, segments: u32) -> Message {
    Message { class: Class::PipelineParallel, stage, segments, ..Message::default() }
}

fn chosen(message: Message, network: Network) -> Option<(u8, u8, u8)> {
    choose(&Policy::default(), &message, &network).map(|p| (p.data, p.parity, p.depth))
}

/// The table of residual failures of (32,4) at a loss of 1 %: worked out apart from this code.
const TABLE: [(f64, u32, f64, f64); 6] = [
    (1.0, 1, 2.9e-5, 0.1e-5),
    (8.0, 1, 2.85e-2, 0.005e-2),
    (8.0, 2, 2.89e-2, 0.005e-2),
    (8.0, 8, 5.3e-3, 0.05e-3),
    (8.0, 16, 5.5e-4, 0.05e-4),
    (8.0, 32, 5.1e-5, 0.05e-5),
];

#[test]
fn the_table_of_bursts() {
    for (burst, depth, wanted, within) in TABLE {
        let failure = group_failure(32, 4, 1e-2, burst, depth);
        assert!(
            (failure - wanted).abs() <= within,
            "burst {burst}, depth {depth}: {failure:e}, not {wanted:e}"
        );
    }
}

/// The chain by its definition, packet by packet, over as many groups as tell the value within four standard deviations.
#[test]
fn bursts_as_simulated() {
    let mut random = fastrand::Rng::with_seed(33);
    for (depth, groups) in [(1, 200_000), (2, 200_000), (8, 150_000), (16, 150_000)] {
        let mut failed = 0;
        for _ in 0..groups {
            let mut bad = random.f64() < 0.01;
            let mut lost = 0;
            for shard in 0..36 {
                lost += u32::from(bad);
                if shard < 35 {
                    for _ in 0..depth {
                        // Out of the bad state with 1/8, into it so that 1 % of the time is bad.
                        let into = 0.125 * 0.01 / 0.99;
                        bad = random.f64() < if bad { 0.875 } else { into };
                    }
                }
            }
            failed += u32::from(lost > 4);
        }
        let wanted = group_failure(32, 4, 1e-2, 8.0, depth);
        let got = f64::from(failed) / f64::from(groups);
        let deviation = (wanted * (1.0 - wanted) / f64::from(groups)).sqrt();
        assert!((got - wanted).abs() < 4.0 * deviation, "depth {depth}: {got:e}, computed {wanted:e}");
    }
}

/// The same exactly, by its definition: the chances of each number of losses and each state, one packet after the other, of which every `depth`th is of the group.
#[test]
fn bursts_packet_by_packet() {
    let (leave, enter) = (0.125, 0.125 * 0.01 / 0.99);
    for (_, depth, ..) in TABLE.into_iter().skip(1) {
        // chance[lost][bad]
        let mut chance = [[0.0; 2]; 37];
        chance[0] = [0.99, 0.01];
        for packet in 0..=35 * depth {
            if packet > 0 {
                chance = chance.map(|[good, bad]| {
                    [good * (1.0 - enter) + bad * leave, good * enter + bad * (1.0 - leave)]
                });
            }
            if packet % depth == 0 {
                let before = chance;
                for lost in 0..37 {
                    chance[lost] = [before[lost][0], if lost > 0 { before[lost - 1][1] } else { 0.0 }];
                }
            }
        }
        let all: f64 = chance.iter().flatten().sum();
        let failed: f64 = chance[5..].iter().flatten().sum();
        let computed = group_failure(32, 4, 1e-2, 8.0, depth);
        assert!((all - 1.0).abs() < 1e-9, "{all}");
        assert!((computed / failed - 1.0).abs() < 1e-6, "depth {depth}: {computed:e}, by steps {failed:e}");
    }
}

#[test]
fn failures_at_the_edges() {
    // Without parity any loss fails the group; of a single shard that is the loss itself.
    assert!((group_failure(1, 0, 0.3, 1.0, 1) - 0.3).abs() < 1e-12);
    assert!((group_failure(2, 0, 0.3, 1.0, 1) - 0.51).abs() < 1e-12);
    assert!((group_failure(1, 1, 0.3, 1.0, 1) - 0.09).abs() < 1e-12);
    assert_eq!(group_failure(8, 2, 0.0, 8.0, 1), 0.0);
    assert!((group_failure(8, 2, 1.0, 8.0, 1) - 1.0).abs() < 1e-12);
}

#[test]
fn who_is_protected() {
    let untagged = Message { class: Class::Untagged, priority: 15, ..gradient(1000) };
    assert_eq!(chosen(untagged, FAR), None);
    assert_eq!(chosen(Message { priority: 7, ..gradient(1000) }, FAR), None, "low-priority gradients");
    assert!(chosen(gradient(1000), FAR).is_some());
    assert!(chosen(activation(9, 1000), FAR).is_some());
    let near = Network { round_trip: 100_000, ..FAR };
    assert_eq!(chosen(gradient(1000), near), None, "sending again is as fast");
    let late = Message { deadline: 101_000_000, ..gradient(1000) };
    assert_eq!(chosen(late, FAR), None, "there is time to send again");
    assert!(chosen(Message { deadline: 99_000_000, ..late }, FAR).is_some());
    assert_eq!(chosen(gradient(0), FAR), None);
}

#[test]
fn the_classes_strengths_at_one_percent() {
    assert_eq!(chosen(gradient(1000), FAR), Some((32, 4, 1)));
    assert_eq!(chosen(activation(0, 1000), FAR), Some((16, 4, 1)));
    assert_eq!(chosen(activation(4, 1000), FAR), Some((32, 2, 1)));
    assert_eq!(chosen(Message { class: Class::Control, ..gradient(1) }, FAR), Some((1, 1, 1)));
}

#[test]
fn strength_follows_the_loss() {
    let parity = |loss| chosen(gradient(1000), Network { loss, ..FAR }).unwrap().1;
    assert_eq!([1e-6, 1e-4, 1e-3, 1e-2, 0.1].map(parity), [1, 1, 2, 4, 4]);
    let tolerant = Message { tolerance: 128, ..gradient(1000) };
    assert!(chosen(tolerant, FAR).unwrap().1 < 4, "who tolerates losses needs less");
    let hurried = Message { deadline: 30_000_000, ..gradient(1000) };
    assert!(chosen(hurried, Network { loss: 2e-3, ..FAR }).unwrap().1 > parity(2e-3), "there is one chance");
}

#[test]
fn depth_follows_bursts_and_short_messages_have_short_groups() {
    let bursty = Network { burst: 8.0, ..FAR };
    assert_eq!(chosen(gradient(10_000), bursty), Some((32, 4, 32)), "groups of 32 in a block of 1,024");
    let milder = Network { loss: 1e-3, ..bursty };
    assert_eq!(chosen(activation(0, 10_000), milder), Some((16, 2, 32)));
    let short_blocks = Policy { block: 256, ..Policy::default() };
    let p = choose(&short_blocks, &activation(0, 10_000), &milder);
    assert_eq!(p, Some(Protection { data: 16, parity: 4, depth: 16 }), "twice the parity");
    // A message is divided evenly: no group of a few segments with as much parity as any at its end.
    assert_eq!(chosen(gradient(65), FAR).map(|(data, _, _)| data), Some(22));
    // 64 segments have no more than 16 groups of four.
    let (data, _, depth) = chosen(gradient(64), bursty).unwrap();
    assert_eq!((data, depth), (4, 16));
    // Too short even for that.
    let (data, _, depth) = chosen(gradient(10), bursty).unwrap();
    assert!(u32::from(data) * u32::from(depth) >= 10 && depth <= 3, "{data} × {depth}");
}

/// Whatever is asked, the code exists, the message is covered, and the block is bounded.
#[test]
fn every_answer_can_be_carried_out() {
    let mut random = fastrand::Rng::with_seed(3);
    let policy = Policy::default();
    for _ in 0..20_000 {
        let longest = 1 << random.u32(0..20);
        let message = Message {
            class: Class::from_wire(random.u8(0..5)),
            priority: random.u8(0..16),
            stage: random.u8(..),
            tolerance: random.u8(..),
            segments: random.u32(0..=longest),
            deadline: random.u64(0..100_000_000),
        };
        let network = Network {
            loss: random.f64(),
            burst: 1.0 + 100.0 * random.f64(),
            round_trip: random.u64(0..100_000_000),
        };
        let Some(p) = choose(&policy, &message, &network) else { continue };
        assert!(p.data >= 1 && p.parity >= 1 && p.depth >= 1 && p.parity <= p.data, "{p:?} for {message:?}");
        assert!(p.block() <= policy.block, "{p:?} for {message:?}");
        assert!(u32::from(p.depth) <= message.segments.div_ceil(u32::from(p.data)), "{p:?} for {message:?}");
    }
}

#[test]
fn classes_have_their_numbers() {
    for number in 0..=255 {
        let class = Class::from_wire(number);
        assert_eq!(class.to_wire(), if number < 4 { number } else { 0 });
    }
}

/// Round trips of `packets` packets, of which so many are lost.
fn rounds(losses: &mut Losses, count: u32, packets: u32, lost: u32) -> Vec<f64> {
    let each = |_| {
        losses.observe(packets, lost, lost);
        losses.round();
        losses.loss()
    };
    (0..count).map(each).collect()
}

fn within(value: f64, range: RangeInclusive<f64>) {
    assert!(range.contains(&value), "{value:e} is not in {range:?}");
}

#[test]
fn more_loss_is_believed_at_once_and_less_within_a_hundred_round_trips() {
    let mut losses = Losses::default();
    within(losses.loss(), 1e-3..=2e-3);
    rounds(&mut losses, 300, 10_000, 1);
    within(losses.loss(), 0.0..=4e-4);
    // From 0.01 % to 1 %.
    let up = rounds(&mut losses, 10, 10_000, 100);
    within(up[0], 1e-2..=2e-2);
    within(up[9], 1e-2..=2e-2);
    let down = rounds(&mut losses, 100, 10_000, 1);
    within(down[5], 5e-3..=2e-2);
    within(down[99], 0.0..=4e-4);
    assert!(down.windows(2).all(|pair| pair[1] <= pair[0]), "it does not rise while nothing gets worse");
}

#[test]
fn a_rate_at_a_step_does_not_toggle() {
    let mut losses = Losses::default();
    rounds(&mut losses, 200, 10_000, 10);
    let told: Vec<f64> = (0..10).flat_map(|i| rounds(&mut losses, 10, 10_000, 8 + i % 2 * 4)).collect();
    let changes = told.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 1, "{changes} changes: {told:?}");
}

#[test]
fn a_lone_loss_is_no_storm_and_bursts_are_noticed() {
    let mut losses = Losses::default();
    rounds(&mut losses, 400, 100, 0);
    let before = losses.loss();
    losses.observe(20, 1, 1);
    // One of the long window.
    within(losses.loss(), before..=1.3e-4);
    for _ in 0..200 {
        losses.observe(1000, 8, 8);
    }
    assert_eq!(losses.burst(), 1.0);
    // Longer ones soon, and shorter ones slowly.
    let told = |losses: &mut Losses, lost, runs| {
        losses.observe(1000, lost, runs);
        losses.burst()
    };
    let up: Vec<f64> = (0..6).map(|_| told(&mut losses, 8, 1)).collect();
    within(up[0], 1.0..=2.0);
    within(up[5], 5.6..=8.0);
    let down: Vec<f64> = (0..24).map(|_| told(&mut losses, 1, 1)).collect();
    within(down[3], 4.0..=8.0);
    within(down[23], 1.0..=1.5);
}

/// A burst is one event: a window with one or two of them tells no rate of its own.
#[test]
fn rates_are_told_from_runs() {
    let mut losses = Losses::default();
    rounds(&mut losses, 300, 1000, 0);
    for _ in 0..40 {
        // A burst of 8 in 8,000 packets, all of it in one window of 512.
        losses.observe(400, 8, 1);
        rounds(&mut losses, 19, 400, 0);
        within(losses.loss(), 1e-6..=4e-3);
    }
    within(losses.loss(), 1e-3..=2.1e-3);
    within(losses.burst(), 5.6..=11.4);
    // Four of them in one window are believed at once.
    losses.observe(500, 32, 4);
    within(losses.loss(), 3e-2..=7e-2);
}

#[test]
fn blocks_of_a_message_that_has_begun_follow_the_network_in_strength_only() {
    let policy = Policy::default();
    let message = activation(0, 10_000);
    let good = Network { loss: 1e-5, ..FAR };
    let begun = choose(&policy, &message, &good).unwrap();
    assert_eq!((begun.data, begun.parity, begun.depth), (16, 1, 1));
    let now = adapt(&policy, &message, &FAR, begun);
    assert_eq!(now, Protection { parity: 4, ..begun });
    let bursty = Network { burst: 8.0, ..FAR };
    assert_eq!(
        adapt(&policy, &message, &bursty, begun),
        Protection { parity: 8, ..begun },
        "as strong as may be"
    );
    assert_eq!(adapt(&policy, &message, &good, now), begun);
}

#[test]
fn a_strength_that_is_given_is_taken_whatever_is_measured() {
    let fixed =
        |data, parity, depth| Strength { data, parity, fixed: Some(depth), ..Policy::default().gradients };
    let chosen = |strength, message, network| {
        let policy = Policy { gradients: strength, ..Policy::default() };
        choose(&policy, &message, &network).map(|p| (p.data, p.parity, p.depth))
    };
    let clean = Network { loss: 1e-6, ..FAR };
    let stormy = Network { loss: 0.2, burst: 20.0, ..FAR };
    for network in [clean, stormy] {
        assert_eq!(chosen(fixed(20, 3, 4), gradient(4000), network), Some((20, 3, 4)));
        // No more groups than the message or a block has.
        assert_eq!(chosen(fixed(20, 3, 4), gradient(30), network), Some((15, 3, 2)));
        assert_eq!(chosen(fixed(64, 3, 64), gradient(100_000), network).map(|p| p.2), Some(16));
    }
    // Who is not protected at all is not so with a fixed code either.
    assert_eq!(chosen(fixed(20, 0, 4), gradient(4000), FAR), None);
    assert_eq!(chosen(fixed(20, 3, 4), Message { priority: 7, ..gradient(4000) }, FAR), None);
    assert_eq!(chosen(fixed(20, 3, 4), gradient(4000), Network { round_trip: 400_000, ..FAR }), None);
    // What no code has is the most that there is.
    assert_eq!(chosen(fixed(255, 255, 255), gradient(4000), FAR), Some((64, 16, 16)));
    assert_eq!(chosen(fixed(0, 3, 0), gradient(4000), FAR), None);
    let low = Strength { from_priority: 3, ..fixed(20, 3, 4) };
    assert!(chosen(low, Message { priority: 3, ..gradient(4000) }, FAR).is_some());
}

#[test]
fn only_the_end_of_a_long_message_is_late() {
    let policy = Policy::default();
    let of = |message: Message, carried| late(&policy, &message, carried);
    // A round trip and an eighth.
    assert_eq!([800, 899, 900, 10_000].map(|segments| of(gradient(segments), 800)), [800, 899, 900, 900]);
    assert_eq!(of(gradient(10_000), u32::MAX), 10_000);
    assert_eq!([10, 63, 64, 65].map(|segments| of(gradient(segments), 0)), [10, 63, 64, 64]);
    // What is given is given for all of it, and who has no parity has no end with some.
    let given = Policy { gradients: Strength { fixed: Some(2), ..policy.gradients }, ..policy };
    assert_eq!(late(&given, &gradient(10_000), 800), 10_000);
    assert_eq!(of(Message { segments: 10_000, ..Message::default() }, 800), 10_000);
}

//! Which figures there are, who takes part in each, and what is wanted of them.

use crate::bare::frame_len;
use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Event, Outcome, Sample, hold};
use crate::far;
use crate::fec;
use crate::headers;
use crate::parity;
use crate::paths;
use crate::peers::perftest::{Idle, Posting};
use crate::peers::place::{Driver, Place};
use crate::peers::spraywire::Worker;
use crate::peers::{Setup, bare, perftest, spraywire, testpmd};
use crate::reliable::{self, Part};
use crate::report;
use crate::stats::Better;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::cell::Cell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Throughput.
    Ud,
    /// Latency.
    Lat,
    /// Headers.
    Headers,
    /// The erasure code.
    Fec,
    /// Throughput over ports that have the kernel at their other end.
    Ports,
    /// Throughput of two workers beside one.
    Workers,
    /// Throughput of a verbs program.
    Verbs,
    /// Latency of a verbs program.
    VerbsLat,
    /// The reliable service.
    Reliable(Part),
    /// What parity costs over shared memory.
    Parity,
    /// Many paths beside one.
    Paths,
    /// Forward error correction over a long link.
    Far,
}

impl Figure {
    /// In the order in which they are measured.
    pub const ALL: [Figure; 15] = [
        Figure::Headers,
        Figure::Fec,
        Figure::Lat,
        Figure::Ud,
        Figure::Workers,
        Figure::VerbsLat,
        Figure::Verbs,
        Figure::Reliable(Part::Raw),
        Figure::Reliable(Part::Peers),
        Figure::Reliable(Part::Loss),
        Figure::Reliable(Part::Long),
        Figure::Parity,
        Figure::Far,
        Figure::Paths,
        Figure::Ports,
    ];

    /// Those of the reliable service.
    pub const RELIABLE: [Figure; 4] = {
        let [a, b, c, d] = Part::ALL;
        [Figure::Reliable(a), Figure::Reliable(b), Figure::Reliable(c), Figure::Reliable(d)]
    };
}

/// The worker polled inline reaches that share of the bare loop's rate.
const INLINE: f64 = 0.80;
/// The worker in its own thread, behind queues, does.
const THREAD: f64 = 0.60;
/// The median round trip takes at most so many times the bare echo's.
const LATENCY: f64 = 1.3;

/// perftest over the preloaded verbs library reaches that share of our own command's rate, and at most so many times its latency.
const VERBS: f64 = 0.85;
const VERBS_LATENCY: f64 = 1.3;

/// Over a port that has the kernel at its other end, the worker reaches that share of testpmd's rate.
const PORTS: f64 = 0.90;
/// The largest MTU that all of them have: a frame of `net_af_xdp` lies within a page.
const PORTS_MTU: u16 = 1500;

/// How the figures are measured.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Options {
    /// Runs of each contestant, interleaved
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Seconds that a throughput run measures
    #[arg(long, default_value_t = 0.7, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds of traffic before that
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    pub warmup: f64,
    /// Round trips of a latency run
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    pub round_trips: u32,
    /// Payload sizes in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096], value_name = "BYTES,…")]
    pub sizes: Vec<usize>,
    /// Processors of the receiver and of the sender; the first two that may be used if not given
    #[arg(long, value_delimiter = ',', num_args = 1, value_name = "A,B")]
    pub cores: Vec<usize>,
    /// MTU of the ports in bytes
    #[arg(long, default_value_t = 4200)]
    pub mtu: u16,
    /// Send queue depth, and message buffers of the bare sender
    #[arg(long, default_value_t = 128)]
    pub tx_depth: usize,
    /// Receive queue depth, and message buffers of the bare receiver
    #[arg(long, default_value_t = 512)]
    pub rx_depth: usize,
    /// The spraywire command; the one beside this program if not given
    #[arg(long, value_name = "FILE")]
    pub spraywire: Option<PathBuf>,
    /// Print JSON and nothing else on standard output; with a file, write it there beside the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[serde(skip)]
    pub json: Option<Option<PathBuf>>,
    /// Exit code 1 unless everything that is wanted is reached
    #[arg(long)]
    pub check: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("seconds from 0.01 to 3600".into()),
    }
}

/// Measures and reports.
pub fn measure(options: &Options, wanted: &[Figure]) -> Result<ExitCode, Box<dyn Error>> {
    let stop = Stop::on_signals()?;
    let setup = setup(options, wanted)?;
    let wanted = possible(wanted, &setup)?;
    let to_stdout = matches!(options.json, Some(None));
    let mut outcomes = Vec::new();
    let mut ended = Ok(());
    'figures: for &figure in &wanted {
        let rounds = options.runs as usize;
        let mut done = |outcome: Outcome| {
            if !to_stdout {
                println!("{}", report::text(&outcome));
            }
            outcomes.push(outcome);
        };
        let whole = match figure {
            Figure::Reliable(part) => Some(reliable::measure(part, &setup, rounds, &stop, &mut done)),
            Figure::Fec => Some(fec::measure(rounds, &stop, &mut done)),
            Figure::Far => Some(far::measure(&setup, rounds.div_ceil(5), &options.sizes, &stop, &mut done)),
            Figure::Parity => Some(parity::measure(&setup, rounds, &stop, &mut done)),
            Figure::Paths => Some(paths::measure(&setup, rounds, &stop, &mut done)),
            _ => None,
        };
        if let Some(measured) = whole {
            if let Err(failure) = measured {
                ended = Err(failure);
                break 'figures;
            }
            continue;
        }
        for setup in &places(figure, &setup) {
            for &size in &options.sizes {
                if figure == Figure::Ports && frame_len(size) > usize::from(setup.mtu) {
                    eprintln!(
                        "{size} B do not fit the MTU of {} of the ports with the kernel at their other end",
                        setup.mtu
                    );
                    continue;
                }
                match one(figure, size, options, setup, &stop) {
                    Ok(outcome) => {
                        if !to_stdout {
                            println!("{}", report::text(&outcome));
                        }
                        outcomes.push(outcome);
                    }
                    Err(failure) => {
                        ended = Err(failure);
                        break 'figures;
                    }
                }
            }
        }
    }
    // What is complete is reported even if the rest was interrupted.
    if let Some(target) = &options.json {
        report::write(&report::Session::new(options, &outcomes), target.as_deref())?;
    }
    match ended {
        Err(Failure::Interrupted) => return Ok(ExitCode::from(130)),
        Err(failure) => return Err(failure.to_string().into()),
        Ok(()) => {}
    }
    let passed = outcomes.iter().all(Outcome::passed);
    Ok(if options.check && !passed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Those figures that can be measured here. Where some of several cannot, standard error says why.
///
/// # Errors
/// None of them can.
fn possible(wanted: &[Figure], setup: &Setup) -> Result<Vec<Figure>, Box<dyn Error>> {
    let ports = || {
        if !rustix::process::geteuid().is_root() {
            Some("the figures of ports need root, for network namespaces".to_owned())
        } else if !testpmd::installed() {
            Some(
                "the figures of ports need dpdk-testpmd to compare with (Debian's package: dpdk-dev)"
                    .to_owned(),
            )
        } else {
            None
        }
    };
    let mut left = Vec::new();
    let mut obstacles: Vec<String> = Vec::new();
    for &figure in wanted {
        let obstacle = match figure {
            Figure::Ports => ports(),
            Figure::Paths if !rustix::process::geteuid().is_root() => {
                Some("the figures of paths need root, for a testbed".to_owned())
            }
            Figure::Verbs | Figure::VerbsLat => perftest::obstacle(setup),
            _ => None,
        };
        match obstacle {
            None => left.push(figure),
            Some(obstacle) if !obstacles.contains(&obstacle) => obstacles.push(obstacle),
            Some(_) => {}
        }
    }
    if left.is_empty() {
        return Err(obstacles.join("; ").into());
    }
    for obstacle in obstacles {
        eprintln!("{obstacle}, so they are not measured");
    }
    Ok(left)
}

/// The setups in which a figure is measured.
fn places(figure: Figure, setup: &Setup) -> Vec<Setup> {
    if figure != Figure::Ports {
        return vec![setup.clone()];
    }
    let mtu = setup.mtu.min(PORTS_MTU);
    Driver::ALL.map(|driver| Setup { place: Place::network(driver, mtu), mtu, ..setup.clone() }).into()
}

/// A contest of messages per second; `what` is measured at `size` bytes of payload.
fn throughput(figure: &'static str, what: &str, size: usize) -> Event {
    let title = format!("raw UD throughput{what}, {size} B payload");
    Event { figure, title, size, unit: "msg/s", better: Better::Higher }
}

fn setup(options: &Options, wanted: &[Figure]) -> Result<Setup, Box<dyn Error>> {
    let benches = std::env::current_exe()?;
    let spraywire = match &options.spraywire {
        Some(path) => path.clone(),
        None => benches.with_file_name("spraywire"),
    };
    if wanted.iter().any(|figure| !matches!(figure, Figure::Headers | Figure::Fec)) && !spraywire.is_file() {
        let path = spraywire.display();
        return Err(format!(
            "no spraywire command at {path}: build it with `cargo build --release`, or name it with --spraywire"
        )
        .into());
    }
    Ok(Setup {
        benches,
        spraywire,
        mtu: options.mtu,
        cores: cores(&options.cores)?,
        warmup: options.warmup,
        seconds: options.seconds,
        tx_depth: options.tx_depth,
        rx_depth: options.rx_depth,
        round_trips: options.round_trips as usize,
        place: Place::Memif,
    })
}

fn cores(asked: &[usize]) -> Result<[usize; 2], Box<dyn Error>> {
    match asked {
        [a, b] => Ok([*a, *b]),
        [] => {
            let set = rustix::thread::sched_getaffinity(None)?;
            let mut allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
            match (allowed.next(), allowed.next()) {
                (Some(a), Some(b)) => Ok([a, b]),
                _ => Err("two processors are needed, one for each side".into()),
            }
        }
        _ => Err("--cores wants two processors: --cores 0,1".into()),
    }
}

fn one(
    figure: Figure,
    size: usize,
    options: &Options,
    setup: &Setup,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    let rounds = options.runs as usize;
    let mut say = |text: &str| eprintln!("{text}");
    match figure {
        Figure::Reliable(_) | Figure::Fec | Figure::Far | Figure::Parity | Figure::Paths => {
            Err(Failure::Said("that is measured as a whole".into()))
        }
        Figure::Headers => headers::measure(size, rounds, Path::new(&setup.benches), stop, &mut say),
        Figure::Lat => {
            let event = Event {
                figure: "lat",
                title: format!("ping-pong, median round trip, {size} B payload"),
                size,
                unit: "ns",
                better: Better::Lower,
            };
            let contestants = vec![
                Contestant {
                    name: "bare echo",
                    wanted: None,
                    run: Box::new(|| bare::latency(setup, size, stop)),
                },
                Contestant {
                    name: "worker inline",
                    wanted: Some(LATENCY),
                    run: Box::new(|| spraywire::latency(setup, size, Worker::Inline, stop)),
                },
            ];
            hold(event, contestants, rounds, stop, &mut say)
        }
        Figure::Ud => {
            let event = throughput("ud", "", size);
            hold(event, stream_contestants(setup, size, stop), rounds, stop, &mut say)
        }
        Figure::Workers => {
            let event = throughput("workers", " of two workers on two queues", size);
            let contestant = |name, worker| Contestant {
                name,
                wanted: None,
                run: Box::new(move || spraywire::throughput(setup, size, worker, stop)),
            };
            let contestants =
                vec![contestant("one worker", Worker::Thread), contestant("two workers", Worker::Two)];
            hold(event, contestants, rounds, stop, &mut say)
        }
        Figure::Verbs => {
            let event = throughput("verbs", " of a verbs program", size);
            hold(event, verbs_contestants(setup, size, stop), rounds, stop, &mut say)
        }
        Figure::VerbsLat => {
            let event = Event {
                figure: "verbs-lat",
                title: format!("ping-pong of a verbs program, median round trip, {size} B payload"),
                size,
                unit: "ns",
                better: Better::Lower,
            };
            hold(event, verbs_lat_contestants(setup, size, stop), rounds, stop, &mut say)
        }
        Figure::Ports => {
            let Place::Network(network) = &setup.place else {
                return Err(Failure::Said("a port with the kernel at its other end needs a network".into()));
            };
            let event = throughput("ports", &format!(" over {}", network.driver().name()), size);
            let contestants = vec![
                Contestant {
                    name: "testpmd txonly → rxonly",
                    wanted: None,
                    run: Box::new(move || testpmd::throughput(setup, size, stop)),
                },
                // What touching the bytes costs, which testpmd does not.
                Contestant {
                    name: "bare loop",
                    wanted: None,
                    run: Box::new(move || bare::throughput(setup, size, stop)),
                },
                Contestant {
                    name: "worker inline",
                    wanted: Some(PORTS),
                    run: Box::new(move || spraywire::throughput(setup, size, Worker::Inline, stop)),
                },
            ];
            hold(event, contestants, rounds, stop, &mut say)
        }
    }
}

fn verbs_contestants<'a>(setup: &'a Setup, size: usize, stop: &'a Stop) -> Vec<Contestant<'a>> {
    // Our own command's rate in this round.
    let own = Rc::new(Cell::new(0.0));
    let last = own.clone();
    let perftest = |name, wanted, posting| Contestant {
        name,
        wanted,
        run: Box::new(move || perftest::throughput(setup, size, posting, stop)),
    };
    let mut contestants = vec![
        Contestant {
            name: "spraywire bw",
            wanted: None,
            run: Box::new(move || {
                let sample = spraywire::throughput(setup, size, Worker::Inline, stop)?;
                own.set(sample.value);
                Ok(sample)
            }),
        },
        perftest("ib_send_bw -c UD", Some(VERBS), Posting::One),
        perftest("ib_send_bw -c UD -l 32", None, Posting::Lists),
    ];
    match Idle::build() {
        Ok(idle) => contestants.push(Contestant {
            name: "bound: bw's time and perftest's loop",
            wanted: None,
            run: Box::new(move || {
                let alone = perftest::alone(setup, size, &idle, stop)?;
                let detail = json!({ "perftest_alone": alone });
                Ok(Sample { value: one_after_the_other(last.get(), alone), detail })
            }),
        }),
        Err(why) => eprintln!("{why}"),
    }
    contestants
}

/// The rate of who takes the time of both for a message.
fn one_after_the_other(a: f64, b: f64) -> f64 {
    1.0 / (1.0 / a + 1.0 / b)
}

fn verbs_lat_contestants<'a>(setup: &'a Setup, size: usize, stop: &'a Stop) -> Vec<Contestant<'a>> {
    vec![
        Contestant {
            name: "spraywire lat",
            wanted: None,
            run: Box::new(move || spraywire::latency(setup, size, Worker::Inline, stop)),
        },
        Contestant {
            name: "ib_send_lat -c UD",
            wanted: Some(VERBS_LATENCY),
            run: Box::new(move || perftest::latency(setup, size, stop)),
        },
    ]
}

fn stream_contestants<'a>(setup: &'a Setup, size: usize, stop: &'a Stop) -> Vec<Contestant<'a>> {
    let mut contestants = vec![
        Contestant {
            name: "bare loop",
            wanted: None,
            run: Box::new(move || bare::throughput(setup, size, stop)),
        },
        Contestant {
            name: "worker inline",
            wanted: Some(INLINE),
            run: Box::new(move || spraywire::throughput(setup, size, Worker::Inline, stop)),
        },
        Contestant {
            name: "worker thread",
            wanted: Some(THREAD),
            run: Box::new(move || spraywire::throughput(setup, size, Worker::Thread, stop)),
        },
    ];
    if testpmd::installed() {
        contestants.push(Contestant {
            name: "testpmd txonly → rxonly",
            wanted: None,
            run: Box::new(move || testpmd::throughput(setup, size, stop)),
        });
    } else {
        eprintln!("no dpdk-testpmd here, so it is not shown (Debian's package: dpdk-dev)");
    }
    contestants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_time_of_both() {
        // 70 and 14 ns.
        assert!((one_after_the_other(1e9 / 70.0, 1e9 / 14.0) - 1e9 / 84.0).abs() < 1.0);
    }

    #[test]
    fn two_processors_or_none() {
        assert_eq!(cores(&[3, 1]).unwrap(), [3, 1]);
        assert!(cores(&[1]).is_err());
        assert!(cores(&[1, 2, 3]).is_err());
    }

    #[test]
    fn seconds_have_bounds() {
        assert_eq!(seconds("0.7"), Ok(0.7));
        for bad in ["0", "-1", "nan", "x", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}

//! Many paths over routers of the kernel, whose ECMP spreads them: beside one path, and what becomes of losses, dark paths and skew.

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Event, Outcome, Sample, hold};
use crate::peers::Setup;
use crate::peers::testbed::{Bed, goodput, report};
use crate::stats::Better;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Paths between the routers.
const NETWORK: u32 = 8;
/// Many paths reach that share of the goodput over one; so do those of which one is bad.
const WANTED: f64 = 0.95;
/// Bytes of a message.
const MESSAGE: usize = 1 << 20;
/// Loss of every path where repairs are measured.
const LOSS: &str = "--loss=0.1%";
/// Loss of the one that is bad.
const BAD: &str = "--loss=10%";
/// From loss to repair in loaded round trips: half of the segments, and 99 of 100.
const REPAIRED: [f64; 2] = [1.5, 2.0];
/// Share of repairs that a time-out began. What it gives up that only was held up is mostly told of before it would go again.
const TIMED_OUT: f64 = 0.001;
/// The longest pause while a path is dark, and until it carries again, in nanoseconds.
const PAUSE: f64 = 10e6;
const BACK: f64 = 2e9;
/// How long a path is dark.
const DARK: Duration = Duration::from_millis(500);
/// Between two looks whether it carries.
const LOOK: Duration = Duration::from_millis(20);
/// Segments sent again that had arrived, as a share of all: four paths with 10 ms of skew, and 32 paths.
const SKEWED: f64 = 0.01;
const SOUND: f64 = 0.001;

/// What is measured, one contest after the other.
struct Measured<'a> {
    setup: &'a Setup,
    rounds: usize,
    stop: &'a Stop,
    each: &'a mut dyn FnMut(Outcome),
}

/// Measures; `each` gets the outcomes.
pub fn measure(
    setup: &Setup,
    rounds: usize,
    stop: &Stop,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), Failure> {
    let mut all = Measured { setup, rounds, stop, each };
    all.beside_one()?;
    all.one_bad()?;
    all.repairs()?;
    all.dark()?;
    all.needless()
}

fn event(title: String, unit: &'static str, better: Better) -> Event {
    Event { figure: "paths", title, size: 0, unit, better }
}

/// A value that is no run, but what is allowed.
fn bound<'a>(value: f64) -> Contestant<'a> {
    Contestant {
        name: "allowed",
        wanted: None,
        run: Box::new(move || Ok(Sample { value, detail: Value::Null })),
    }
}

/// A number of a report.
fn number(report: &Value, pointer: &str) -> Result<f64, Failure> {
    report
        .pointer(&format!("/results/0{pointer}"))
        .and_then(Value::as_f64)
        .ok_or_else(|| Failure::Said(format!("spraywire's JSON has no number {pointer}")))
}

/// A share of the segments that the client sent. Without any of `part`, the least that could have been seen is taken for it.
fn share(report: &Value, part: &str, whole: &str) -> Result<Sample, Failure> {
    let (part, whole) = (number(report, part)?, number(report, whole)?);
    Ok(Sample { value: part / whole.max(1.0), detail: json!({ "part": part, "whole": whole }) })
}

impl Measured<'_> {
    fn hold(&mut self, event: Event, contestants: Vec<Contestant<'_>>) -> Result<(), Failure> {
        let outcome = hold(event, contestants, self.rounds, self.stop, &mut |text| eprintln!("{text}"))?;
        (self.each)(outcome);
        Ok(())
    }

    /// One value against what is allowed of it.
    fn within(
        &mut self,
        title: String,
        unit: &'static str,
        allowed: f64,
        name: &'static str,
        run: impl FnMut() -> Result<Sample, Failure>,
    ) -> Result<(), Failure> {
        let measured = Contestant { name, wanted: Some(1.0), run: Box::new(run) };
        self.hold(event(title, unit, Better::Lower), vec![bound(allowed), measured])
    }

    fn beside_one(&mut self) -> Result<(), Failure> {
        let (setup, stop) = (self.setup, self.stop);
        let bed = Bed::up(setup, NETWORK, &[])?;
        let over = |name, wanted, paths| Contestant {
            name,
            wanted,
            run: Box::new({
                let bed = &bed;
                move || goodput(setup, bed, paths, MESSAGE, stop)
            }),
        };
        let title = format!("reliable goodput over a testbed of {NETWORK} equal paths, 1 MiB messages");
        let contestants = vec![
            over("one path", None, 1),
            over("8 paths", Some(WANTED), 8),
            over("32 paths", Some(WANTED), 32),
        ];
        self.hold(event(title, "bit/s", Better::Higher), contestants)
    }

    fn one_bad(&mut self) -> Result<(), Failure> {
        let (setup, stop) = (self.setup, self.stop);
        let bed = Bed::up(setup, NETWORK, &[])?;
        let with = |name, wanted, loss| Contestant {
            name,
            wanted,
            run: Box::new({
                let bed = &bed;
                move || {
                    bed.path(3, &[loss])?;
                    goodput(setup, bed, 32, MESSAGE, stop)
                }
            }),
        };
        let title = format!("reliable goodput over {NETWORK} paths, one of which loses 10 %");
        let contestants =
            vec![with("without its loss", None, "--loss=0"), with("with it", Some(WANTED), BAD)];
        self.hold(event(title, "bit/s", Better::Higher), contestants)
    }

    fn repairs(&mut self) -> Result<(), Failure> {
        let (setup, stop) = (self.setup, self.stop);
        let bed = Bed::up(setup, NETWORK, &[LOSS])?;
        let run = || report(setup, &bed, 32, &[format!("--size={MESSAGE}")], stop, || Ok(()));
        let [half, most] = REPAIRED;
        for (which, quantile, allowed, note) in [
            ("repairs", "p50", half, ""),
            ("repairs", "p99", most, ""),
            ("steady_repairs", "p99", most, " during which no side was away for one"),
        ] {
            let title = format!(
                "loss to repair in loaded round trips{note}, {quantile}, {NETWORK} paths that lose 0.1 %"
            );
            self.within(title, "round trips", allowed, "repairs", || {
                let report = run()?;
                let repairs = report.pointer(&format!("/results/0/reliable/client/{which}")).cloned();
                let value = number(&report, &format!("/reliable/client/{which}/{quantile}"))?;
                Ok(Sample { value, detail: repairs.unwrap_or_default() })
            })?;
        }
        let title = format!("repairs after a time-out, {NETWORK} paths that lose 0.1 %");
        self.within(title, "of repairs", TIMED_OUT, "by a time-out", || {
            let report = run()?;
            share(&report, "/reliable/client/timeout_repairs", "/reliable/client/repairs/segments")
        })
    }

    fn dark(&mut self) -> Result<(), Failure> {
        let (setup, stop) = (self.setup, self.stop);
        // It goes dark and comes back within the run.
        let setup = &Setup { seconds: setup.seconds.max(3.0), ..setup.clone() };
        let bed = Bed::up(setup, NETWORK, &[])?;
        let backs = RefCell::new(Vec::new());
        let run = || {
            let options = ["--size=16384", "--rate=4kpps"].map(str::to_owned);
            let meanwhile = || {
                std::thread::sleep(Duration::from_secs(1));
                bed.path(1, &["--link=dark"])?;
                std::thread::sleep(DARK);
                bed.path(1, &["--link=up"])?;
                // Probes of every path that has its way here would be packets too: they are few.
                let (begun, before) = (Instant::now(), bed.carried(1)?);
                while bed.carried(1)? < before + 50 {
                    stop.check()?;
                    if begun.elapsed() > Duration::from_secs(5) {
                        return Err(Failure::Said("the path never carried again".into()));
                    }
                    std::thread::sleep(LOOK);
                }
                backs.borrow_mut().push(begun.elapsed().as_nanos() as f64);
                Ok(())
            };
            let report = report(setup, &bed, 32, &options, stop, meanwhile)?;
            let lost = number(&report, "/client_to_server/lost")?;
            if lost > 0.0 {
                return Err(Failure::Said(format!("{lost} messages were lost")));
            }
            let value = number(&report, "/client_to_server/longest_pause_ns")?;
            Ok(Sample { value, detail: report.pointer("/results/0/reliable").cloned().unwrap_or_default() })
        };
        let title = format!("longest pause while one of {NETWORK} paths is dark, no message lost");
        self.within(title, "ns", PAUSE, "dark for 0.5 s", run)?;
        let mut backs = backs.take().into_iter();
        self.within("until a path that was dark carries again".into(), "ns", BACK, "back", || {
            let value = backs.next().ok_or_else(|| Failure::Said("the path was never dark".into()))?;
            Ok(Sample { value, detail: Value::Null })
        })
    }

    fn needless(&mut self) -> Result<(), Failure> {
        let (setup, stop) = (self.setup, self.stop);
        for (paths, options, allowed, what) in [
            (4, ["--skew=10ms"].as_slice(), SKEWED, "4 paths with 10 ms of skew"),
            (NETWORK, &[], SOUND, "32 paths without loss"),
        ] {
            let bed = Bed::up(setup, paths, options)?;
            let title = format!("segments sent again that had arrived, {what}");
            self.within(title, "of segments", allowed, "needless", || {
                let options = [format!("--size={MESSAGE}"), "--memory=32MB".to_owned()];
                let report =
                    report(setup, &bed, if paths == 4 { 16 } else { 32 }, &options, stop, || Ok(()))?;
                share(&report, "/reliable/client/spurious", "/reliable/client/segments")
            })?;
        }
        Ok(())
    }
}

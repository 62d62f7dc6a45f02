//! Many paths beside one, where nothing is congested: kernel ECMP between two leaf routers.

use crate::child::{Failure, Stop};
use crate::contest::{Contestant, Event, Outcome, hold};
use crate::peers::Setup;
use crate::peers::testbed::{Bed, goodput};
use crate::stats::Better;

/// Paths between the routers.
const NETWORK: u32 = 8;
/// Many paths reach that share of the goodput over one.
const WANTED: f64 = 0.95;
/// Bytes of a message.
const MESSAGE: usize = 1 << 20;

/// Measures; `each` gets the outcome.
pub fn measure(
    setup: &Setup,
    rounds: usize,
    stop: &Stop,
    each: &mut dyn FnMut(Outcome),
) -> Result<(), Failure> {
    let bed = Bed::up(setup, NETWORK)?;
    let over = |name, wanted, paths| Contestant {
        name,
        wanted,
        run: Box::new({
            let bed = &bed;
            move || goodput(setup, bed, paths, MESSAGE, stop)
        }),
    };
    let event = Event {
        figure: "paths",
        title: format!("reliable goodput over a testbed of {NETWORK} equal paths, 1 MiB messages"),
        size: 0,
        unit: "bit/s",
        better: Better::Higher,
    };
    let contestants =
        vec![over("one path", None, 1), over("8 paths", Some(WANTED), 8), over("32 paths", Some(WANTED), 32)];
    each(hold(event, contestants, rounds, stop, &mut |text| eprintln!("{text}"))?);
    Ok(())
}

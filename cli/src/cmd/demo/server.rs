//! The other process of `spraywire demo`: serves one session of tests of any kind, and ends with its parent.

use crate::cmd::measure::{Job, MeasureArgs, open_config, with_bench};
use crate::endpoint::OpenConfig;
use crate::error::{Error, Exit};
use crate::reliable::{self, Audience, ScaleArgs, Service, Wish};
use crate::rendezvous::message::TestSpec;
use crate::report::Out;
use crate::signal::{self, Stop};
use crate::traffic::drive::Drive;
use crate::traffic::session::{Bench, Serve, TestResult, Watch};
use clap::Args;
use std::io::Read;
use std::net::IpAddr;

/// What it says on standard output once a client can come.
pub const READY: &str = "READY";

/// Arguments of `demo-server`, which nobody types.
#[derive(Args, Clone, Debug)]
pub struct DemoServerArgs {
    /// What every measurement has.
    #[command(flatten)]
    pub common: MeasureArgs,
}

/// Runs the command.
pub fn run(args: &DemoServerArgs, verbosity: u8) -> Result<Exit, Error> {
    let stop = signal::install()?;
    end_with_the_parent(stop.clone())?;
    // The client warns of few cores for both.
    let config = OpenConfig { measures: false, ..open_config(&args.common, verbosity) };
    match args.common.service.service {
        Service::Ud => with_bench(&args.common, &config, &stop, ServerJob)?,
        Service::Reliable => {
            let wish = Wish { specs: &[], scale: ScaleArgs::default(), mix: None, kind: None };
            reliable::run(&args.common, &config, &wish, &stop, &mut Everything)?;
        }
    }
    Ok(Exit::Ok)
}

/// Standard input is a pipe that the parent holds and never writes to: when it ends, the parent has, however that was.
fn end_with_the_parent(stop: Stop) -> Result<(), Error> {
    let wait = move || {
        let mut byte = [0];
        // An error says as well that there is no parent to wait for.
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        stop.request();
    };
    let thread = std::thread::Builder::new().name("parent".to_owned()).spawn(wait);
    thread.map(|_| ()).map_err(|e| Error::failed(format_args!("cannot start a thread: {e}")))
}

struct ServerJob;

impl Job for ServerJob {
    type Out = ();

    fn run<D: Drive>(self, mut bench: Bench<D>) -> Result<(), Error> {
        Out::stdout().unbuffered().line(READY)?;
        bench.serve(&mut Everything)
    }
}

/// Accepts every test that fits.
struct Everything;

impl Watch for Everything {}

impl Audience for Everything {
    fn ready(&mut self, _text: &str) -> Result<(), Error> {
        Out::stdout().unbuffered().line(READY)
    }

    fn result(&mut self, _result: TestResult) -> Result<(), Error> {
        Ok(())
    }
}

impl Serve for Everything {
    fn accept(&mut self, _spec: &TestSpec, _mtu: usize) -> Result<(), String> {
        Ok(())
    }

    fn began(&mut self, peer: IpAddr, spec: &TestSpec) {
        tracing::info!("{peer} runs {spec:?}");
    }

    fn ended(&mut self, _result: TestResult) -> Result<(), Error> {
        Ok(())
    }
}

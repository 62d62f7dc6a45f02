//! One scenario, by flags.

use super::{Congestion, Pattern, SimArgs, Topology, figures, simulate, table};
use crate::error::{Error, Exit};
use crate::report::json::Document;
use roce_proto::transport::{Algorithm, Config};
use roce_proto::wire::shim::segment_size;
use serde_json::json;
use std::time::Instant;
use testbed_sim::Poll;
use testbed_sim::single::Single;

/// Packets that a link holds: memory is taken only as they come.
const CAPACITY: usize = 1 << 20;

/// Runs it and reports.
pub fn run(args: &SimArgs) -> Result<Exit, Error> {
    let scenario = single(args)?.scenario();
    for host in &scenario.hosts {
        host.config.check().map_err(Error::usage)?;
    }
    let target = args.output.json();
    let start = Instant::now();
    let (report, verdict, mut out) = simulate(args, &scenario, target.text())?;
    let wall = start.elapsed();
    table(&report, wall).to_string().lines().try_for_each(|line| out.line(line))?;
    if let Err(violation) = &verdict {
        out.line(format_args!("VIOLATION {violation}"))?;
    }
    out.flush()?;
    let mut document = Document::new("sim", args);
    let mut result = figures(&report);
    result["violation"] = verdict.as_ref().err().map_or(json!(null), |v| v.to_string().into());
    document.set("results", &[result]);
    document.set("wall_ns", &(wall.as_nanos() as u64));
    document.set("ok", &verdict.is_ok());
    document.write(&target)?;
    Ok(if verdict.is_ok() { Exit::Ok } else { Exit::Failed })
}

fn single(args: &SimArgs) -> Result<Single, Error> {
    let one = &args.one;
    let mut link = args.impair.config()?;
    link.capacity = CAPACITY;
    let base = Single::default();
    let lanes = usize::from(one.lanes);
    Ok(Single {
        seed: args.seed.unwrap_or(1),
        hosts: usize::from(one.hosts),
        pattern: match one.pattern {
            Pattern::Pair => testbed_sim::Pattern::Pair,
            Pattern::ManyToOne => testbed_sim::Pattern::ManyToOne,
            Pattern::AllToAll => testbed_sim::Pattern::AllToAll,
            Pattern::Ring => testbed_sim::Pattern::Ring,
            Pattern::PingPong => testbed_sim::Pattern::PingPong,
            Pattern::Permutation => testbed_sim::Pattern::Permutation,
        },
        messages: one.messages as usize,
        size: one.size,
        late: one.late,
        semantics: one.tags.semantics(),
        topology: match one.topology {
            Topology::Mesh => testbed_sim::Topology::Mesh { lanes },
            Topology::Star => testbed_sim::Topology::Star,
            Topology::Dumbbell => testbed_sim::Topology::Dumbbell { lanes },
            Topology::LeafSpine => testbed_sim::Topology::LeafSpine {
                leaves: usize::from(one.leaves),
                spines: usize::from(one.spines),
            },
        },
        link,
        config: Config {
            paths: one.paths,
            segment: segment_size(usize::from(one.mtu)) as u32,
            control: u32::from(one.mtu).min(Config::default().control),
            congestion: match one.cc {
                Congestion::Fixed => Algorithm::Fixed(one.window),
                Congestion::DelayEcn => Algorithm::DelayEcn,
            },
            fec: one.tags.fec(),
            ..base.config
        },
        poll: one.poll.map_or(Poll::OnEvent, Poll::Every),
        ..base
    })
}

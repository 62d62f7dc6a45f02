//! `spraywire testbed`: a network of many paths on this machine, of the kernel's own namespaces, routers and queues.

mod build;
mod plan;
mod share;
mod state;
#[cfg(test)]
mod tests;
mod tools;

use crate::args::OutputArgs;
use crate::error::{Error, Exit};
use crate::report::numbers::{Time, plural};
use crate::report::{Document, Out};
use crate::signal::{self, Stop};
use crate::units;
use clap::{Args, Subcommand};
use plan::{Bits, HOSTS, Link, PATHS, Plan, Setting, Share, Side, Value as _};
use serde::Serialize;
use serde_json::{Value, json};
use state::{Held, State};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const AFTER: &str = "\
Two leaf routers with several paths between them, and hosts behind each: network namespaces of the kernel, which spreads flows over the \
paths by a hash of addresses, protocol and UDP ports (fib_multipath_hash_policy 1), for IPv4 and IPv6. Hosts have an interface e0 for \
a net_af_packet port. With --two-dc, two hosts of one network and nothing but a long link between them. Needs root, iproute2 and nftables; nothing outside of its own namespaces is touched.

Examples:
  spraywire testbed up --paths 8
      eight equal paths; prints the commands that measure across them
  spraywire testbed up --loss 1% --loss 3=10% --rate 1g
      loss in the routers: 1 % on each path, 10 % on the third; 1 Gbit/s each
  spraywire testbed up --delay 1ms --skew 10ms
      from 1 ms on the first path to 11 ms on the last
  spraywire testbed up --loss 2=1% --burst 8
      losses of the second path in bursts of eight, on average
  spraywire testbed up --two-dc --loss 0.1% --burst 8 --rate 1g
                                                        two hosts 25 ms of round trip apart
  spraywire testbed path 3 --link dark
      the third path swallows everything from now on
  spraywire testbed path 3 --link up --loss 0           and no more
  spraywire testbed status                              a picture, and what each path carried
  spraywire testbed down                                removes everything, also after a crash";

const UP_AFTER: &str = "\
Examples:
  spraywire testbed up
  spraywire testbed up --paths 16 --hosts 4
  spraywire testbed up --two-dc --delay 50ms --loss 1%
  spraywire testbed up --paths 4 --loss 2=10% --rate 500M --rate 4=100M --delay 5ms";

const PATH_AFTER: &str = "\
Examples:
  spraywire testbed path 2 --link down     both routers know, and send its flows over the others
  spraywire testbed path 2 --link dark     nobody knows
  spraywire testbed path 2 --link up --loss 5% --rate 100M";

const STATUS_AFTER: &str = "\
A path's share is of the packets that the router before it chose it for: > those to the right, < those to the left.

Examples:
  spraywire testbed status
  spraywire testbed status --reset     and count from nothing again
  spraywire testbed status --json";

const DOWN_AFTER: &str = "\
Ends every process in the testbed's namespaces.

Examples:
  spraywire testbed down
  spraywire testbed down --all         every testbed that there is or was left behind";

/// A network of many paths.
#[derive(Subcommand, Clone, Debug)]
#[command(after_help = AFTER)]
pub enum TestbedCommand {
    /// Make it
    Up(UpArgs),
    /// Change a path of it
    Path(PathArgs),
    /// Show it, and what each path carried
    Status(StatusArgs),
    /// Remove it
    Down(DownArgs),
}

/// The name of a testbed: up to 16 letters and digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Name(pub String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let fits = (1..=16).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if fits { Ok(Name(text.to_owned())) } else { Err("a name is 1 to 16 letters and digits".to_owned()) }
    }
}

/// Arguments of `testbed up`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = UP_AFTER)]
pub struct UpArgs {
    /// Name of the testbed: several can be up side by side
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub name: Name,

    /// Paths between the two leaf routers
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u8).range(PATHS))]
    pub paths: u8,

    /// Two data centres instead: a host on each side, joined by a forwarder of ours (`spraywire wan`) with all of the delay (12.5 ms each way
    /// unless --delay says otherwise), losses and rate
    #[arg(long, conflicts_with_all = ["paths", "hosts", "skew"])]
    pub two_dc: bool,

    /// Hosts behind each leaf router
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(HOSTS))]
    pub hosts: u8,

    /// Share of packets that each router loses on the way into every path, or one: 1%, 3=10%
    #[arg(long, value_name = "[PATH=]SHARE")]
    pub loss: Vec<Setting<Share>>,

    /// Losses in a row, on average (Gilbert–Elliott, in a forwarder of ours), on the paths that lose
    #[arg(long, value_name = "FRAMES")]
    pub burst: Option<f64>,

    /// Bits per second of every path, or of one, each way, with a queue of 5 ms before it
    #[arg(long, value_name = "[PATH=]RATE")]
    pub rate: Vec<Setting<Bits>>,

    /// Delay of every path, or of one, each way; by a forwarder of ours in it
    #[arg(long, value_name = "[PATH=]TIME")]
    pub delay: Vec<Setting<Duration>>,

    /// Added to the delays: nothing on the first path, this on the last, even steps between
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = units::duration)]
    #[serde(rename = "skew_s", serialize_with = "units::seconds")]
    pub skew: Duration,

    /// MTU of all links in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4200, value_parser = clap::value_parser!(u16).range(1280..=9000))]
    pub mtu: u16,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

/// Arguments of `testbed path`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = PATH_AFTER)]
pub struct PathArgs {
    /// The path, counted from 1
    #[arg(value_name = "PATH", value_parser = clap::value_parser!(u8).range(1..))]
    pub path: u8,

    /// Name of the testbed
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub name: Name,

    /// Whether packets take it
    #[arg(long, value_enum, value_name = "HOW")]
    pub link: Option<Link>,

    /// Share of packets that each router loses on the way into it
    #[arg(long, value_name = "SHARE", value_parser = units::share)]
    pub loss: Option<f64>,

    /// Bits per second, each way
    #[arg(long, value_name = "RATE", value_parser = Bits::read)]
    pub rate: Option<Bits>,
}

/// Arguments of `testbed status`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = STATUS_AFTER)]
pub struct StatusArgs {
    /// Name of the testbed
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub name: Name,

    /// Count from nothing again, after this
    #[arg(long)]
    pub reset: bool,

    /// Where results go.
    #[command(flatten)]
    #[serde(skip)]
    pub output: OutputArgs,
}

/// Arguments of `testbed down`.
#[derive(Args, Clone, Debug, Serialize)]
#[command(after_help = DOWN_AFTER)]
pub struct DownArgs {
    /// Name of the testbed
    #[arg(long, value_name = "NAME", default_value = "default", conflicts_with = "all")]
    pub name: Name,

    /// Every testbed
    #[arg(long)]
    pub all: bool,
}

/// Runs the command.
pub fn run(command: &TestbedCommand) -> Result<Exit, Error> {
    tools::check()?;
    let stop = signal::install()?;
    match command {
        TestbedCommand::Up(args) => up(args, &stop),
        TestbedCommand::Path(args) => path(args, &stop),
        TestbedCommand::Status(args) => status(args, &stop),
        TestbedCommand::Down(args) => down(args, &stop),
    }
}

/// So many processes, in words.
fn processes(count: usize) -> String {
    plural(count as u64, "process").replace("processs", "processes")
}

/// `--name NAME`, where it is needed.
fn named(name: &Name) -> String {
    if name.0 == "default" { String::new() } else { format!(" --name {}", name.0) }
}

fn up(args: &UpArgs, stop: &Stop) -> Result<Exit, Error> {
    let plan = Plan::of(args)?;
    let target = args.output.json();
    target.check()?;
    let held = Held::wait(stop)?;
    let name = &args.name;
    if held.state(&name.0).is_some() && !tools::namespaces(&plan.prefix()).is_empty() {
        return Err(Error::usage(format_args!("the testbed `{}` is up already", name.0)).hint(format_args!(
            "remove it: spraywire testbed down{}; or give this one another name: --name",
            named(name)
        )));
    }
    clear_stale(&held, &plan, name)?;
    let folder = held.begin(&name.0)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let state = State { plan, since, baseline: Vec::new() };
    let made = build::build(&state.plan, &folder, stop).and_then(|()| held.write(&state));
    if let Err(error) = made {
        // The first error is the one that counts.
        let removed = build::remove(&state.plan.prefix()).and_then(|_| held.forget(&name.0));
        if let Err(left) = removed {
            left.print();
        }
        // What a program that a signal ended says is not the reason.
        return Err(if stop.requested() { Error::interrupted() } else { error });
    }
    let plan = &state.plan;
    let mut out = target.text();
    out.line(plan::picture(plan))?;
    let [server, client] = commands(plan);
    out.line(format_args!("\nTo measure across it:\n  {server} &\n  {client}"))?;
    let [v4, v6] = [false, true].map(|v6| plan::host_address(Side::Right, 1, v6));
    out.line(format_args!("or over IPv6: {v6} instead of {v4}"))?;
    out.line(format_args!(
        "then: spraywire testbed status{0}, and at the end: spraywire testbed down{0}",
        named(name)
    ))?;
    out.flush()?;
    let mut document = Document::new("testbed up", args);
    document.set("results", &json!([described(plan)]));
    document.write(&target)?;
    Ok(Exit::Ok)
}

/// Removes what an earlier testbed of this name left behind.
fn clear_stale(held: &Held, plan: &Plan, name: &Name) -> Result<(), Error> {
    let stale = tools::namespaces(&plan.prefix());
    let live = stale.iter().flat_map(|name| tools::processes(name)).count();
    if live > 0 {
        return Err(Error::usage(format_args!(
            "namespaces of a testbed `{}` are here, with {} in them",
            name.0,
            processes(live),
        ))
        .hint(format_args!("end and remove them: spraywire testbed down{}", named(name))));
    }
    let removed = build::remove(&plan.prefix())?;
    if held.forget(&name.0)? || removed.namespaces > 0 {
        Out::stderr().line(format_args!(
            "removed what an earlier testbed left behind: {}",
            plural(removed.namespaces as u64, "namespace")
        ))?;
    }
    Ok(())
}

/// The commands of a server on the right and a client on the left. Each side says how many paths it wants, and the smaller number is
/// taken.
fn commands(plan: &Plan) -> [String; 2] {
    let to = plan::host_address(Side::Right, 1, false);
    if let (true, Some(path)) = (plan.two_dc, plan.paths.first()) {
        // A quarter more than what is on the way in a round trip: with parity, which no window counts, that fits the queue of as much again.
        let rate = path.rate.unwrap_or(1_000_000_000) as f64;
        let kilobytes = (2.5 * path.delay.as_secs_f64() * rate / 8e3).ceil().max(64.0);
        let window = format!("--window {kilobytes}kB");
        return [
            plan.command(Side::Right, 1, &format!("bw {window}")),
            plan.command(Side::Left, 1, &format!("bw {window} -s 256k --mix dp:70,pp:25,control:5 {to}")),
        ];
    }
    [
        plan.command(Side::Right, 1, "bw --paths 32"),
        plan.command(Side::Left, 1, &format!("bw --paths 32 {to}")),
    ]
}

/// A testbed as JSON.
fn described(plan: &Plan) -> Value {
    let gateways = |side, host| -> Vec<String> {
        let families = [false, true].into_iter().filter(|_| !plan.two_dc);
        families.map(|v6| plan::gateway(side, host, v6)).collect()
    };
    let hosts = Side::BOTH.into_iter().flat_map(|side| {
        (1..=plan.hosts).map(move |host| {
            json!({
                "side": side.name(),
                "namespace": plan.host(side, host),
                "interface": "e0",
                "addresses": [plan::host_address(side, host, false), plan::host_address(side, host, true)],
                "gateways": gateways(side, host),
            })
        })
    });
    let [server, client] = commands(plan);
    json!({
        "name": plan.name,
        "paths": plan.paths.len(),
        "mtu": plan.mtu,
        "hosts": hosts.collect::<Vec<_>>(),
        "leaves": plan.leaves().map(|side| plan.leaf(side)).collect::<Vec<_>>(),
        "two_dc": plan.two_dc,
        "commands": {"server": server, "client": client},
    })
}

/// The testbed of that name.
fn find(held: &Held, name: &Name) -> Result<State, Error> {
    let there = tools::namespaces(&plan::prefix(&name.0));
    match held.state(&name.0) {
        Some(state) if !there.is_empty() => {
            match state.plan.namespaces().into_iter().find(|name| !there.contains(name)) {
                None => Ok(state),
                Some(gone) => Err(Error::failed(format_args!("{gone} is gone"))
                    .hint(format_args!("remove the rest: spraywire testbed down{}", named(name)))),
            }
        }
        _ => {
            let others: Vec<_> =
                held.names().into_iter().filter(|other| held.state(other).is_some()).collect();
            let hint = match others.as_slice() {
                [] => "make one: spraywire testbed up".to_owned(),
                others => format!("there is: {}; --name says which", others.join(", ")),
            };
            Err(Error::usage(format_args!("there is no testbed `{}`", name.0)).hint(hint))
        }
    }
}

fn path(args: &PathArgs, stop: &Stop) -> Result<Exit, Error> {
    let held = Held::wait(stop)?;
    let mut state = find(&held, &args.name)?;
    let (count, number) = (state.plan.paths.len(), usize::from(args.path));
    if state.plan.two_dc {
        return Err(Error::usage("two data centres have one path, which is as it was made").hint(
            format_args!(
                "make it anew: spraywire testbed down{0}, then spraywire testbed up --two-dc{0} …",
                named(&args.name)
            ),
        ));
    }
    let Some(path) = state.plan.paths.get_mut(number - 1) else { return Err(plan::no_path(number, count)) };
    if args.loss.is_some() && path.burst.is_some() {
        return Err(Error::usage(format_args!("the losses of path {number} come in bursts, as it was made"))
            .hint("only what the routers lose can be changed: make the testbed anew without --burst"));
    }
    path.link = args.link.unwrap_or(path.link);
    path.loss = args.loss.unwrap_or(path.loss);
    path.rate = args.rate.map(|Bits(rate)| rate).or(path.rate);
    let what = path.to_string();
    build::change(&state.plan, number)?;
    held.write(&state)?;
    let what = if what.is_empty() { "up".to_owned() } else { what };
    Out::stdout().line(format_args!("path {number}: {what}")).and(Ok(Exit::Ok))
}

fn status(args: &StatusArgs, stop: &Stop) -> Result<Exit, Error> {
    let target = args.output.json();
    target.check()?;
    let held = Held::wait(stop)?;
    let mut state = find(&held, &args.name)?;
    let now = share::read(&state.plan).map_err(|e| {
        e.hint(format_args!("parts of the testbed are gone: spraywire testbed down{}", named(&args.name)))
    })?;
    let counts = share::since(&now, &state.baseline);
    let plan = &state.plan;
    let processes: usize = plan.namespaces().iter().map(|name| tools::processes(name).len()).sum();
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let age = elapsed.saturating_sub(state.since);
    let mut out = target.text();
    out.line(format_args!(
        "testbed `{}`, up for {}, {} inside\n",
        plan.name,
        Time(Duration::from_secs(age)),
        self::processes(processes)
    ))?;
    out.line(plan::picture(plan))?;
    out.line(format_args!("\n{}", share::table(plan, &counts)))?;
    out.flush()?;
    let mut document = Document::new("testbed status", args);
    let mut described = described(plan);
    described["age_s"] = age.into();
    described["processes"] = processes.into();
    document.set("testbed", &described);
    document.set("results", &share::to_json(plan, &counts));
    document.write(&target)?;
    if args.reset {
        state.baseline = now;
        held.write(&state)?;
    }
    Ok(Exit::Ok)
}

fn down(args: &DownArgs, stop: &Stop) -> Result<Exit, Error> {
    let held = Held::wait(stop)?;
    let all = if args.all { "spwtb-".to_owned() } else { plan::prefix(&args.name.0) };
    let removed = build::remove(&all)?;
    let names = if args.all { held.names() } else { vec![args.name.0.clone()] };
    let mut known = false;
    for name in names {
        known |= held.forget(&name)?;
    }
    let text = match (removed.namespaces, known) {
        (0, false) => "there was nothing to remove".to_owned(),
        (namespaces, _) => {
            let ended = match removed.processes {
                0 => String::new(),
                n => format!(", and ended {}", processes(n)),
            };
            format!("removed {}{ended}", plural(namespaces as u64, "namespace"))
        }
    };
    Out::stdout().line(text).and(Ok(Exit::Ok))
}

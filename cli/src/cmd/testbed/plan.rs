//! What a testbed is: its paths, its hosts, what they are called, and its picture.

use super::UpArgs;
use crate::error::Error;
use crate::report::numbers::{Si, Time};
use crate::units;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Paths between the two leaf routers.
pub const PATHS: std::ops::RangeInclusive<i64> = 2..=16;
/// The delay between two data centres if nothing else is said, each way: a round trip of 25 ms, which is some 2,500 km of fibre.
const FAR: Duration = Duration::from_micros(12_500);
/// The longest.
const FARTHEST: Duration = Duration::from_millis(100);
/// Hosts behind a leaf router, at the most.
pub const HOSTS: std::ops::RangeInclusive<i64> = 1..=16;

/// A value for every path, or for one: `VALUE`, or `PATH=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Setting<T> {
    /// The path, counted from 1; all if none.
    pub path: Option<usize>,
    /// The value.
    pub value: T,
}

/// What values of settings are, and how they are written.
pub trait Value: Sized + Copy {
    /// Reads one.
    ///
    /// # Errors
    /// What was expected.
    fn read(text: &str) -> Result<Self, String>;
}

/// A share of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Share(pub f64);

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Bits(pub u64);

impl Value for Share {
    fn read(text: &str) -> Result<Share, String> {
        units::share(text).map(Share)
    }
}

impl Value for Bits {
    fn read(text: &str) -> Result<Bits, String> {
        match units::rate(text)? {
            // Below, a single packet takes longer than anybody waits for it.
            units::Rate::BitsPerSecond(rate) if rate >= 1e5 => Ok(Bits(rate.round() as u64)),
            units::Rate::BitsPerSecond(_) => Err(format!("`{text}`: at least 100k (bits per second)")),
            units::Rate::MessagesPerSecond(_) => {
                Err(format!("`{text}`: a path's rate is in bits per second: 1g"))
            }
        }
    }
}

impl Value for Duration {
    fn read(text: &str) -> Result<Duration, String> {
        units::duration(text)
    }
}

impl<T: Value> FromStr for Setting<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting<T>, String> {
        match text.split_once('=') {
            None => Ok(Setting { path: None, value: T::read(text)? }),
            Some((path, value)) => match path.trim().parse() {
                Ok(path) if path > 0 => Ok(Setting { path: Some(path), value: T::read(value)? }),
                _ => Err(format!("`{path}` is no path: they are counted from 1")),
            },
        }
    }
}

/// Whether packets take a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// They do.
    #[default]
    Up,
    /// Its links are down, and the routers know: the other paths take its flows
    Down,
    /// The routers send into it, and nothing arrives
    Dark,
}

/// A path, and what happens to packets on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathPlan {
    /// Share of packets that each router loses before it.
    pub loss: f64,
    /// Bits per second, each way.
    pub rate: Option<u64>,
    /// Delay, each way.
    pub delay: Duration,
    /// Losses in a row, on average, if they come in bursts.
    pub burst: Option<f64>,
    /// Whether packets take it.
    pub link: Link,
}

impl PathPlan {
    /// Whether a forwarder of ours stands in it.
    pub fn has_leg(&self) -> bool {
        !self.delay.is_zero() || self.burst.is_some()
    }

    /// Frames of a kilobyte that are on the way at once, each way, in a forwarder that has the rate too: with its queue, what it holds in the
    /// time of three delays. Memory is taken for them.
    pub fn frames(&self) -> u32 {
        let rate = self.rate.unwrap_or(2_000_000_000) as f64;
        let frames = 3.0 * self.delay.as_secs_f64() * rate / 8.0 / 1024.0;
        (frames as u32).clamp(8_192, 1 << 18)
    }

    /// The loss that the routers make.
    pub fn router_loss(&self) -> f64 {
        if self.burst.is_some() { 0.0 } else { self.loss }
    }
}

/// What happens on a path, in words: empty if nothing does.
impl fmt::Display for PathPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        match self.link {
            Link::Up => {}
            Link::Down => words.push("down".to_owned()),
            Link::Dark => words.push("dark".to_owned()),
        }
        if self.loss > 0.0 {
            words.push(format!("loss {} %", rounded(self.loss * 100.0)));
        }
        if let Some(burst) = self.burst {
            words.push(format!("in bursts of {burst}"));
        }
        if let Some(rate) = self.rate {
            words.push(format!("{}bit/s", Si(rate as f64)));
        }
        if !self.delay.is_zero() {
            words.push(format!("delay {}", Time(self.delay)));
        }
        f.pad(&words.join(", "))
    }
}

/// Without the digits that only binary fractions have.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// A side of the testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where clients run in the examples.
    Left,
    /// Where servers do.
    Right,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Left, Side::Right];

    /// The name of its hosts.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }

    /// 1 for the left, 2 for the right: its leaf router, and its end of every path.
    pub const fn number(self) -> usize {
        match self {
            Side::Left => 1,
            Side::Right => 2,
        }
    }

    /// The other.
    pub const fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// A testbed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Hosts behind each leaf router.
    pub hosts: usize,
    /// MTU of all links, in bytes.
    pub mtu: u16,
    /// One host on each side, joined by a forwarder instead of routers.
    #[serde(default)]
    pub two_dc: bool,
    /// The paths.
    pub paths: Vec<PathPlan>,
}

impl Plan {
    /// As the arguments want it.
    ///
    /// # Errors
    /// A path that there is none of, and losses in a row without losses.
    pub fn of(args: &UpArgs) -> Result<Plan, Error> {
        let count = if args.two_dc { 1 } else { usize::from(args.paths) };
        let mut paths = vec![PathPlan::default(); count];
        set(&mut paths, &args.loss, |path, Share(loss)| path.loss = loss)?;
        set(&mut paths, &args.rate, |path, Bits(rate)| path.rate = Some(rate))?;
        if args.two_dc {
            paths.iter_mut().for_each(|path| path.delay = FAR);
        }
        set(&mut paths, &args.delay, |path, delay| path.delay = delay)?;
        for (i, path) in paths.iter_mut().enumerate() {
            path.delay += args.skew.mul_f64(i as f64 / (count - 1).max(1) as f64);
            if path.loss > 0.0 {
                path.burst = args.burst;
            }
        }
        if let Some(burst) = args.burst {
            if paths.iter().all(|path| path.loss == 0.0) {
                return Err(Error::usage("--burst says how losses come, and there are none: give --loss"));
            }
            for path in &paths {
                testbed_impair::Loss::bursts(path.loss, burst).map_err(Error::usage)?;
            }
        }
        if let Some(path) = paths.first().filter(|path| args.two_dc && path.delay > FARTHEST) {
            return Err(Error::usage(format_args!("{} is farther than round the world", Time(path.delay)))
                .hint("--delay is each way: 12.5ms is a round trip of 25 ms; up to 100ms"));
        }
        let hosts = if args.two_dc { 1 } else { usize::from(args.hosts) };
        Ok(Plan { name: args.name.0.clone(), hosts, mtu: args.mtu, two_dc: args.two_dc, paths })
    }

    /// How the names of its namespaces begin.
    pub fn prefix(&self) -> String {
        prefix(&self.name)
    }

    /// The namespace of a leaf router.
    pub fn leaf(&self, side: Side) -> String {
        format!("{}leaf{}", self.prefix(), side.number())
    }

    /// The namespace of a host, counted from 1.
    pub fn host(&self, side: Side, host: usize) -> String {
        format!("{}{}{host}", self.prefix(), side.name())
    }

    /// The namespace of the forwarder that stands in paths.
    pub fn leg(&self) -> String {
        format!("{}wan", self.prefix())
    }

    /// All namespaces.
    pub fn namespaces(&self) -> Vec<String> {
        let hosts = Side::BOTH.into_iter().flat_map(|side| (1..=self.hosts).map(move |host| (side, host)));
        let legs = self.legs().next().map(|_| self.leg());
        let hosts = hosts.map(|(side, host)| self.host(side, host));
        let leaves = self.leaves().map(|side| self.leaf(side));
        leaves.chain(hosts).chain(legs).collect()
    }

    /// The sides that have a leaf router.
    pub fn leaves(&self) -> impl Iterator<Item = Side> + use<> {
        let two_dc = self.two_dc;
        Side::BOTH.into_iter().filter(move |_| !two_dc)
    }

    /// The paths that a forwarder of ours stands in, with their numbers.
    pub fn legs(&self) -> impl Iterator<Item = (usize, &PathPlan)> {
        self.numbered().filter(|(_, path)| self.two_dc || path.has_leg())
    }

    /// The paths with their numbers, from 1.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &PathPlan)> {
        self.paths.iter().enumerate().map(|(i, path)| (i + 1, path))
    }

    /// The command line with which `spraywire ARGS` runs on a host, whose endpoint has an address of each family.
    pub fn command(&self, side: Side, host: usize, args: &str) -> String {
        let program = std::env::current_exe().map_or("spraywire".into(), |path| path.display().to_string());
        let (test, rest) = args.split_once(' ').unwrap_or((args, ""));
        let family = |v6: bool| {
            let ip = host_address(side, host, v6);
            if self.two_dc {
                // One network for both hosts.
                return format!("--ip {ip}/16");
            }
            format!("--ip {ip}/{} --gateway {}", if v6 { 64 } else { 24 }, gateway(side, host, v6))
        };
        let port = format!("--port net_af_packet0,iface=e0 {} {}", family(false), family(true));
        let line = format!("ip netns exec {} {program} {test} {port} {rest}", self.host(side, host));
        line.trim_end().to_owned()
    }
}

/// How the names of the namespaces of a testbed begin.
pub fn prefix(name: &str) -> String {
    format!("spwtb-{name}-")
}

fn set<T: Value>(
    paths: &mut [PathPlan],
    settings: &[Setting<T>],
    mut to: impl FnMut(&mut PathPlan, T),
) -> Result<(), Error> {
    let count = paths.len();
    // Those for all paths first, in whichever order they were given.
    let (all, single): (Vec<&Setting<T>>, Vec<&Setting<T>>) =
        settings.iter().partition(|setting| setting.path.is_none());
    for setting in all.into_iter().chain(single) {
        match setting.path {
            None => paths.iter_mut().for_each(|path| to(path, setting.value)),
            Some(number) => match paths.get_mut(number - 1) {
                Some(path) => to(path, setting.value),
                None => return Err(no_path(number, count)),
            },
        }
    }
    Ok(())
}

/// A path that there is none of.
pub fn no_path(number: usize, count: usize) -> Error {
    Error::usage(format_args!("there is no path {number}: they are 1 to {count}"))
}

/// The third number of the networks of a side's hosts.
fn network(side: Side, host: usize) -> usize {
    100 * side.number() + host
}

/// Address of a host's endpoint.
pub fn host_address(side: Side, host: usize, v6: bool) -> String {
    let network = network(side, host);
    if v6 { format!("fd78:{network}::1") } else { format!("10.78.{network}.1") }
}

/// Address of the leaf router, as its host knows it.
pub fn gateway(side: Side, host: usize, v6: bool) -> String {
    let network = network(side, host);
    if v6 { format!("fd78:{network}::fe") } else { format!("10.78.{network}.254") }
}

/// The network of a host.
pub fn host_network(side: Side, host: usize, v6: bool) -> String {
    let network = network(side, host);
    if v6 { format!("fd78:{network}::/64") } else { format!("10.78.{network}.0/24") }
}

/// Address of a leaf router on a path.
pub fn path_address(side: Side, path: usize, v6: bool) -> String {
    let end = side.number();
    if v6 { format!("fd79:{path}::{end}") } else { format!("10.79.{path}.{end}") }
}

/// The testbed as text: hosts, leaf routers, and the paths between them.
pub fn picture(plan: &Plan) -> String {
    if let (true, Some(path)) = (plan.two_dc, plan.paths.first()) {
        let [left, right] =
            Side::BOTH.map(|side| format!("{}1  {}", side.name(), host_address(side, 1, false)));
        return format!("  {left}  ──── wan: {path}, each way ────  {right}");
    }
    let rows = plan.paths.len().max(plan.hosts);
    // The number, from 1, of the thing in a row, where `count` of them stand in the middle.
    let in_row =
        |row: usize, count: usize| row.checked_sub((rows - count) / 2).filter(|&i| i < count).map(|i| i + 1);
    let notes: Vec<String> = plan.paths.iter().map(ToString::to_string).collect();
    let width = notes.iter().map(|note| note.chars().count() + 2).max().unwrap_or(0);
    let mut lines = Vec::new();
    for row in 0..rows {
        let host = |side: Side| {
            let number = in_row(row, plan.hosts)?;
            Some((format!("{}{number}", side.name()), host_address(side, number, false)))
        };
        let left = match host(Side::Left) {
            Some((name, address)) => format!("{name:<7} {address:<12} ──"),
            None => " ".repeat(23),
        };
        let right = match host(Side::Right) {
            Some((name, address)) => format!("── {name:<8}{address}"),
            None => String::new(),
        };
        let leaf = |side: Side| {
            if row == (rows - 1) / 2 { format!("leaf{}", side.number()) } else { " ".repeat(5) }
        };
        let path = match in_row(row, plan.paths.len()) {
            Some(number) => {
                let note = notes.get(number - 1).filter(|note| !note.is_empty());
                let note = note.map_or(String::new(), |note| format!(" {note} "));
                format!("── path {number:<2} ──{note:─<width$}──")
            }
            None => " ".repeat(width + 15),
        };
        let line = format!("  {left}│ {} │{path}│ {} │{right}", leaf(Side::Left), leaf(Side::Right));
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n")
}

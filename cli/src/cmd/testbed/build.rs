//! Making a testbed, changing a path of it, and removing it.

use super::plan::{self, Link, PathPlan, Plan, Side};
use super::tools::{self, Feature};
use crate::error::Error;
use crate::signal::Stop;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The table of nftables in each leaf router.
pub const TABLE: &str = "inet spwtb";
/// Steps of chance in the routers' losses.
const CHANCE: u32 = 1_000_000;
/// Frames that a forwarder holds of a path, each way: 2 Gbit/s times 30 ms, of frames of 4 KiB.
const HELD: u32 = 2048;
/// Memory of the forwarder in MiB without that of its ports; buffers of a port beside those of frames that are held, and bytes of each at the most.
const MEMORY: usize = 128;
const SPARE: usize = 4096;
const FRAME: usize = 8704;
/// Runs what follows before all that is not of real time, where that is allowed: a network waits for nobody. Between other pollers on as few cores, which a
/// scheduler lets run for milliseconds at a time, the forwarder's delays would be as much longer. It sleeps whenever nothing is due.
const AT_ONCE: [&str; 3] = ["chrt", "--fifo", "1"];
/// How long a forwarder may take to be ready.
const READY: Duration = Duration::from_secs(20);
/// How long a process may take to end before it is killed.
const END: Duration = Duration::from_secs(2);

/// Makes the namespaces, links, routes, losses, rates and forwarders of a plan. `folder` is for the forwarders' logs.
///
/// # Errors
/// What the kernel or a program refused; [`Error::interrupted`] if a signal came. What was made until then is left to
/// [`remove`].
pub fn build(plan: &Plan, folder: &Path, stop: &Stop) -> Result<(), Error> {
    for name in plan.namespaces() {
        go_on(stop)?;
        tools::run(Command::new("ip").args(["netns", "add", &name]), "", Feature::Namespaces)?;
        // Interfaces that are made from here on say nothing unasked; routers turn IPv6 on again.
        let quiet = [("ipv6/conf/default/disable_ipv6", "1"), ("ipv6/conf/default/accept_dad", "0")];
        tools::sysctl(&name, &quiet)?;
        tools::ip(&name, &["link set lo up".to_owned()], Feature::Namespaces)?;
    }
    if plan.two_dc {
        two_dc(plan)?;
        go_on(stop)?;
        return legs(plan, folder, stop);
    }
    for side in Side::BOTH {
        tools::sysctl(
            &plan.leaf(side),
            &[
                ("ipv6/conf/default/disable_ipv6", "0"),
                ("ipv6/conf/all/disable_ipv6", "0"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv6/conf/all/keep_addr_on_down", "1"),
                ("ipv4/ip_forward", "1"),
                ("ipv4/conf/all/rp_filter", "0"),
                ("ipv4/conf/default/rp_filter", "0"),
                // By addresses, protocol and ports.
                ("ipv4/fib_multipath_hash_policy", "1"),
                ("ipv6/fib_multipath_hash_policy", "1"),
            ],
        )?;
        go_on(stop)?;
    }
    links(plan)?;
    go_on(stop)?;
    for side in Side::BOTH {
        routes(plan, side)?;
        tools::nft(&plan.leaf(side), &rules(plan))?;
        for (number, path) in plan.numbered() {
            rate(plan, side, number, path)?;
        }
        go_on(stop)?;
    }
    legs(plan, folder, stop)
}

fn go_on(stop: &Stop) -> Result<(), Error> {
    if stop.requested() { Err(Error::interrupted()) } else { Ok(()) }
}

fn pair(a: &str, a_in: &str, b: &str, b_in: &str, mtu: u16) -> String {
    format!("link add name {a} mtu {mtu} netns {a_in} type veth peer name {b} mtu {mtu} netns {b_in}")
}

/// Makes pairs of interfaces.
fn make_pairs(pairs: &[String]) -> Result<(), Error> {
    let mut command = Command::new("ip");
    tools::run(command.args(["-batch", "-"]), &(pairs.join("\n") + "\n"), Feature::Veth).map(drop)
}

/// The links of two data centres: each host's to the forwarder.
fn two_dc(plan: &Plan) -> Result<(), Error> {
    let leg = plan.leg();
    let ends = [(Side::Left, "p1w1"), (Side::Right, "p1w2")];
    make_pairs(&ends.map(|(side, end)| pair("e0", &plan.host(side, 1), end, &leg, plan.mtu)))?;
    for side in Side::BOTH {
        tools::ip(&plan.host(side, 1), &["link set e0 up".to_owned()], Feature::Veth)?;
    }
    tools::ip(&leg, &ends.map(|(_, end)| format!("link set {end} up")), Feature::Veth).map(drop)
}

/// All pairs of interfaces and their addresses.
fn links(plan: &Plan) -> Result<(), Error> {
    let mut pairs = Vec::new();
    let mut pair = |a: &str, a_in: &str, b: &str, b_in: &str| pairs.push(pair(a, a_in, b, b_in, plan.mtu));
    let [left, right] = Side::BOTH.map(|side| plan.leaf(side));
    for (number, path) in plan.numbered() {
        let name = format!("p{number}");
        if path.has_leg() {
            let leg = plan.leg();
            pair(&name, &left, &format!("p{number}w1"), &leg);
            pair(&name, &right, &format!("p{number}w2"), &leg);
        } else {
            pair(&name, &left, &name, &right);
        }
    }
    for side in Side::BOTH {
        for host in 1..=plan.hosts {
            pair("e0", &plan.host(side, host), &format!("h{host}"), &plan.leaf(side));
        }
    }
    make_pairs(&pairs)?;
    for side in Side::BOTH {
        let mut lines = Vec::new();
        for host in 1..=plan.hosts {
            lines.push(format!("address add {}/24 dev h{host}", plan::gateway(side, host, false)));
            lines.push(format!("address add {}/64 dev h{host} nodad", plan::gateway(side, host, true)));
            lines.push(format!("link set h{host} up"));
            tools::ip(&plan.host(side, host), &["link set e0 up".to_owned()], Feature::Veth)?;
        }
        for (number, _) in plan.numbered() {
            lines.push(format!("address add {}/24 dev p{number}", plan::path_address(side, number, false)));
            lines.push(format!(
                "address add {}/64 dev p{number} nodad",
                plan::path_address(side, number, true)
            ));
            lines.push(format!("link set p{number} up"));
        }
        tools::ip(&plan.leaf(side), &lines, Feature::Veth)?;
    }
    let lines: Vec<_> =
        plan.legs().flat_map(|(n, _)| ["w1", "w2"].map(|end| format!("link set p{n}{end} up"))).collect();
    if lines.is_empty() { Ok(()) } else { tools::ip(&plan.leg(), &lines, Feature::Veth) }
}

/// Routes to the other side's hosts, over all paths that are not down.
fn routes(plan: &Plan, side: Side) -> Result<(), Error> {
    let mut lines = Vec::new();
    for (v6, family) in [(false, "-4"), (true, "-6")] {
        let hops: String = plan
            .numbered()
            .filter(|(_, path)| path.link != Link::Down)
            .map(|(n, _)| {
                format!(" nexthop via {} dev p{n} weight 1", plan::path_address(side.other(), n, v6))
            })
            .collect();
        for host in 1..=plan.hosts {
            let to = plan::host_network(side.other(), host, v6);
            // Of IPv6, a route of one hop is added to one that is there, and not put in its place.
            lines.push((family, format!("route flush {to}")));
            if !hops.is_empty() {
                lines.push((family, format!("route add {to}{hops}")));
            }
        }
    }
    for family in ["-4", "-6"] {
        let lines: Vec<_> =
            lines.iter().filter(|(of, _)| *of == family).map(|(_, line)| line.as_str()).collect();
        let mut command = Command::new("ip");
        command.args([family, "-n", &plan.leaf(side), "-batch", "-"]);
        tools::run(&mut command, &(lines.join("\n") + "\n"), Feature::Multipath)?;
    }
    Ok(())
}

/// What a leaf router counts and loses: `sent` of a path is what it was to forward into it, `lost` what of it was dropped by
/// chance, `came` what it forwarded out of it.
fn rules(plan: &Plan) -> String {
    let mut text = format!("table {TABLE} {{\n");
    for (number, _) in plan.numbered() {
        for counter in ["sent", "lost", "came"] {
            text += &format!("counter p{number}_{counter} {{ }}\n");
        }
    }
    for (number, path) in plan.numbered() {
        text += &format!("chain p{number} {{\n{}\n}}\n", chain(number, path).join("\n"));
    }
    let to: Vec<_> = plan.numbered().map(|(n, _)| format!("\"p{n}\" : jump p{n}")).collect();
    text += "chain forward {\ntype filter hook forward priority 0; policy accept;\n";
    for (number, _) in plan.numbered() {
        text += &format!("iifname \"p{number}\" counter name p{number}_came\n");
    }
    text += &format!("oifname vmap {{ {} }}\n}}\n}}\n", to.join(", "));
    text
}

/// What happens to a packet that is to take a path.
fn chain(number: usize, path: &PathPlan) -> Vec<String> {
    let mut rules = vec![format!("counter name p{number}_sent")];
    let lost = format!("counter name p{number}_lost drop");
    let chance = (path.router_loss() * f64::from(CHANCE)).round() as u32;
    if path.link == Link::Dark || chance >= CHANCE {
        rules.push(lost);
    } else if chance > 0 {
        rules.push(format!("numgen random mod {CHANCE} < {chance} {lost}"));
    }
    rules
}

/// The rate of a path on one side.
fn rate(plan: &Plan, side: Side, number: usize, path: &PathPlan) -> Result<(), Error> {
    let device = format!("p{number}");
    let Some(rate) = path.rate else {
        // There may be none to take away.
        let _ = tools::run(
            tools::within(&plan.leaf(side), "tc").args(["qdisc", "del", "dev", &device, "root"]),
            "",
            Feature::Tbf,
        );
        return Ok(());
    };
    // The bucket has to last from one tick of the slowest usual clock (250 Hz) to the next, and for a packet.
    let burst = (rate / 8 / 250).max(4 * u64::from(plan.mtu));
    // A queue of 5 ms, and of some packets at the least.
    let limit = burst + (rate / 8 / 200).max(32 * u64::from(plan.mtu));
    let line = format!("qdisc replace dev {device} root tbf rate {rate}bit burst {burst} limit {limit}");
    tools::run(tools::within(&plan.leaf(side), "tc").args(line.split(' ')), "", Feature::Tbf).map(drop)
}

/// The forwarder in the paths that need one, all in one process: several would wait for each other where cores are few. It outlives this one.
fn legs(plan: &Plan, folder: &Path, stop: &Stop) -> Result<(), Error> {
    let (mut lines, mut memory) = (String::new(), MEMORY);
    for (number, path) in plan.legs() {
        let port = |end| format!("--port net_af_packet{},iface=p{number}w{end}", 2 * number + end);
        lines += &format!("{} {} --delay {}ns", port(1), port(2), path.delay.as_nanos());
        if let Some(burst) = path.burst {
            lines += &format!(" --loss {} --burst {burst}", path.loss);
        } else if plan.two_dc {
            lines += &format!(" --loss {}", path.loss);
        }
        if let Some(rate) = path.rate.filter(|_| plan.two_dc) {
            // There is no router before it.
            lines += &format!(" --rate {rate}");
        }
        let held = if plan.two_dc { path.frames() } else { HELD };
        memory += (2 * (held as usize + SPARE) * FRAME) >> 20;
        lines += &format!(" --seed {number} --capacity {held}\n");
    }
    if lines.is_empty() {
        return Ok(());
    }
    let cannot = |e: std::io::Error| Error::failed(format_args!("the forwarder of the paths: {e}"));
    let program = std::env::current_exe().map_err(cannot)?;
    let (pairs, log) = (folder.join("wan.pairs"), folder.join("wan.log"));
    std::fs::write(&pairs, &lines).map_err(cannot)?;
    let out = File::create(&log).map_err(cannot)?;
    let program = program.to_string_lossy().into_owned();
    let at_once = Command::new(AT_ONCE[0]).args(&AT_ONCE[1..]).arg("true").stderr(Stdio::null()).status();
    let words = if at_once.is_ok_and(|status| status.success()) { &AT_ONCE[..] } else { &[] };
    let mut words = words.iter().copied().chain([program.as_str()]);
    let mut command = tools::within(&plan.leg(), words.next().unwrap_or_default());
    command.args(words).arg("wan").arg("--pairs").arg(&pairs);
    command.arg(format!("--eal=-m {memory}"));
    // A group of its own, so that a signal of the terminal's is not for it.
    command.stdin(Stdio::null()).stderr(out.try_clone().map_err(cannot)?).stdout(out).process_group(0);
    let mut child = command.spawn().map_err(cannot)?;
    let begun = Instant::now();
    loop {
        go_on(stop)?;
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if said.contains("READY") {
            return Ok(());
        }
        let ended = !matches!(child.try_wait(), Ok(None));
        if ended || begun.elapsed() > READY {
            let how = if ended { "ended" } else { "is not ready" };
            return Err(Error::failed(format_args!("the forwarder of the paths {how}: {}", said.trim()))
                .hint(
                    "the delays and bursts of paths are made by `spraywire wan`: what it says stands above",
                ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Brings a path of a testbed to what `plan` says of it now.
///
/// # Errors
/// What the kernel refused.
pub fn change(plan: &Plan, number: usize) -> Result<(), Error> {
    let Some(path) = plan.paths.get(number - 1) else { return Err(plan::no_path(number, plan.paths.len())) };
    let rules = chain(number, path);
    let mut lines = format!("flush chain {TABLE} p{number}\n");
    for rule in rules {
        lines += &format!("add rule {TABLE} p{number} {rule}\n");
    }
    let to = if path.link == Link::Down { "down" } else { "up" };
    for side in Side::BOTH {
        let leaf = plan.leaf(side);
        tools::nft(&leaf, &lines)?;
        rate(plan, side, number, path)?;
        tools::ip(&leaf, &[format!("link set p{number} {to}")], Feature::Veth)?;
    }
    // Both ends are up before anybody routes over the path again.
    Side::BOTH.into_iter().try_for_each(|side| routes(plan, side))
}

/// What [`remove`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Namespaces.
    pub namespaces: usize,
    /// Processes in them that were ended.
    pub processes: usize,
}

/// Ends every process in the namespaces whose names begin so, and removes them with all that is in them.
///
/// # Errors
/// A namespace that is still there.
pub fn remove(prefix: &str) -> Result<Removed, Error> {
    let names = tools::namespaces(prefix);
    let inside = || -> Vec<i32> { names.iter().flat_map(|name| tools::processes(name)).collect() };
    let signal = |pids: &[i32], signal| {
        for pid in pids.iter().filter_map(|&pid| Pid::from_raw(pid)) {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    };
    let running = inside();
    signal(&running, Signal::TERM);
    let begun = Instant::now();
    let mut left = running.clone();
    while !left.is_empty() && begun.elapsed() < 2 * END {
        std::thread::sleep(Duration::from_millis(20));
        left = inside();
        if begun.elapsed() > END {
            signal(&left, Signal::KILL);
        }
    }
    for name in &names {
        // What it says is of no use if the namespace is gone.
        let _ = tools::run(Command::new("ip").args(["netns", "delete", name]), "", Feature::Namespaces);
    }
    let still = tools::namespaces(prefix);
    if still.is_empty() && left.is_empty() {
        return Ok(Removed { namespaces: names.len(), processes: running.len() });
    }
    let what = if left.is_empty() { still.join(", ") } else { format!("processes {left:?}") };
    Err(Error::failed(format_args!("still there: {what}"))
        .hint("end what uses it, then: spraywire testbed down"))
}

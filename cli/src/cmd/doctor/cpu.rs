//! Processors: which may be used, how fast they run, and who disturbs them.

use super::{Ask, Finding, Level};
use crate::host::Host;
use crate::host::numa::{self, list};

pub(super) fn check(host: &Host, ask: &Ask) -> Vec<Finding> {
    let mut findings = vec![cores(host, ask)];
    findings.extend(siblings(host, ask));
    findings.extend(quota(host));
    findings.extend(numa(host, ask));
    findings.extend(isolation(host, ask));
    findings.push(governor(host, ask));
    findings.extend(frequency(host, ask));
    findings.push(clock(host));
    findings
}

/// The processors that will run a poll loop, as far as that is known.
fn used(host: &Host, ask: &Ask) -> Vec<usize> {
    if ask.cores.is_empty() { host.process().cpus } else { ask.cores.clone() }
}

fn cores(host: &Host, ask: &Ask) -> Finding {
    let allowed = host.process().cpus;
    let beyond: Vec<usize> = ask.cores.iter().copied().filter(|c| !allowed.contains(c)).collect();
    if !beyond.is_empty() && !allowed.is_empty() {
        return Finding::problem(
            "cores",
            format!("core {} does not exist, is offline, or is not allowed to this process", list(&beyond)),
            format!(
                "choose among {} with --cores, or widen the cpuset of the service or container",
                list(&allowed)
            ),
        );
    }
    match allowed.len() {
        0 => Finding::note(
            "cores",
            "the kernel does not say which cores may be used",
            "name some with --cores",
        ),
        1 | 2 => Finding::warning(
            "cores",
            format!(
                "this process may use {} only: poll loops and everything else share them",
                list(&allowed)
            ),
            "one core for each polling thread, and one for the rest, give steady figures",
        ),
        n => Finding::ok("cores", format!("this process may use {n} cores: {}", list(&allowed))),
    }
}

/// Two poll loops on one physical core halve each other.
fn siblings(host: &Host, ask: &Ask) -> Option<Finding> {
    for (i, &core) in ask.cores.iter().enumerate() {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let Some(together) = host.cpu_list(&path) else { continue };
        if let Some(other) = ask.cores[i + 1..].iter().find(|c| together.contains(c)) {
            return Some(Finding::warning(
                "cores",
                format!("cores {core} and {other} are two threads of one physical core"),
                "name one thread of each core: lscpu -e shows which belong together",
            ));
        }
    }
    None
}

/// A limit on processor time stops a poll loop for tens of milliseconds at a time.
fn quota(host: &Host) -> Option<Finding> {
    let group = host.read("/proc/self/cgroup").unwrap_or_default();
    let own = group.lines().find_map(|l| l.strip_prefix("0::")).unwrap_or_default();
    let mut folder = own.trim_end_matches('/').to_owned();
    loop {
        let text = host.read(&format!("/sys/fs/cgroup{folder}/cpu.max")).unwrap_or_default();
        let mut words = text.split_whitespace().map(str::parse::<u64>);
        if let (Some(Ok(quota)), Some(Ok(period @ 1..))) = (words.next(), words.next()) {
            return Some(Finding::warning(
                "quota",
                format!(
                    "its control group may use {:.1} cores' time: a poll loop beyond that stands still for up to {} ms",
                    quota as f64 / period as f64,
                    period / 1000
                ),
                "lift it (CPUQuota= in the systemd unit, --cpus of the container), or give it cores of its own instead",
            ));
        }
        // The limit of any group above counts as well.
        let (above, _) = folder.rsplit_once('/')?;
        folder = above.to_owned();
    }
}

fn numa(host: &Host, ask: &Ask) -> Option<Finding> {
    let nodes = numa::nodes(host);
    if nodes.len() < 2 {
        return Some(Finding::ok("numa", "one NUMA node")).filter(|_| !nodes.is_empty());
    }
    let Some(node) = ask.numa(host) else {
        return Some(Finding::ok(
            "numa",
            format!("{} NUMA nodes; the port belongs to none of them", nodes.len()),
        ));
    };
    Some(match numa::far(host, node, &used(host, ask)) {
        None => Finding::ok("numa", format!("port and cores are on NUMA node {node}")),
        Some(far) => Finding::warning("numa", far.found(), far.mend()),
    })
}

fn isolation(host: &Host, ask: &Ask) -> Option<Finding> {
    let isolated = host.cpu_list("/sys/devices/system/cpu/isolated")?;
    let shared: Vec<usize> = used(host, ask).into_iter().filter(|c| !isolated.contains(c)).collect();
    if shared.is_empty() {
        return Some(Finding::ok("isolation", format!("cores {} are isolated", list(&isolated))));
    }
    if ask.cores.is_empty() && !isolated.is_empty() {
        return Some(Finding::note(
            "isolation",
            format!("cores {} are isolated, and no core was asked for", list(&isolated)),
            format!("--cores {}", list(&isolated)),
        ));
    }
    let level = if ask.is_nic() { Level::Warning } else { Level::Note };
    let cores = if ask.cores.is_empty() { "LIST".to_owned() } else { list(&ask.cores) };
    Some(Finding::bad(
        "isolation",
        level,
        "the scheduler may put other work on the cores of the poll loop",
        format!(
            "for steady latency: isolcpus={cores} nohz_full={cores} rcu_nocbs={cores} on the kernel's command line"
        ),
    ))
}

fn policy(cpu: usize, file: &str) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}")
}

fn governor(host: &Host, ask: &Ask) -> Finding {
    let cpus = used(host, ask);
    let known: Vec<(usize, String)> =
        cpus.iter().filter_map(|&c| Some((c, host.read(&policy(c, "scaling_governor"))?))).collect();
    let slow: Vec<usize> = known.iter().filter(|(_, g)| g != "performance").map(|(c, _)| *c).collect();
    match (known.first(), slow.is_empty()) {
        (None, _) => Finding::ok(
            "governor",
            "the kernel does not govern frequencies here, as in most virtual machines",
        ),
        (Some(_), true) => Finding::ok("governor", "performance"),
        (Some((_, name)), false) => {
            let name = known.iter().find(|(c, _)| slow.contains(c)).map_or(name, |(_, g)| g);
            let level = if ask.is_nic() { Level::Warning } else { Level::Note };
            let mend = format!("cpupower --cpu {} frequency-set --governor performance", list(&slow));
            Finding::bad("governor", level, format!("core {} has the governor {name}", list(&slow)), mend)
        }
    }
}

fn frequency(host: &Host, ask: &Ask) -> Option<Finding> {
    let mut lowest: Option<(usize, i64, i64)> = None;
    for cpu in used(host, ask) {
        let (limit, most) =
            (host.number(&policy(cpu, "scaling_max_freq"))?, host.number(&policy(cpu, "cpuinfo_max_freq"))?);
        if lowest.is_none_or(|(_, l, m)| limit * m < l * most) {
            lowest = Some((cpu, limit, most));
        }
    }
    let (cpu, limit, most) = lowest?;
    Some(if limit < most {
        Finding::warning(
            "frequency",
            format!("core {cpu} is held at {} of {} MHz", limit / 1000, most / 1000),
            format!("cpupower --cpu {cpu} frequency-set --max {most}"),
        )
    } else {
        Finding::ok("frequency", format!("up to {} MHz", most / 1000))
    })
}

/// Clock sources that a process reads without a system call.
const FAST_CLOCKS: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];

fn clock(host: &Host) -> Finding {
    let source = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source {
        Some(source) if !FAST_CLOCKS.contains(&source.as_str()) => Finding::warning(
            "clock",
            format!("the clock source is {source}, and reading the time takes a system call"),
            "if the processor's counter is sound: echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        Some(source) => Finding::ok("clock", format!("{source}, read without a system call")),
        None => Finding::ok("clock", "the kernel does not name its clock source"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ask, only};
    use super::*;
    use crate::host::made_up::Machine;

    #[test]
    fn cores_must_be_allowed_and_enough() {
        let machine = Machine::new();
        let level = |line: &str| only(&check(&machine.host, &ask(line)), "cores").level;
        assert_eq!(level(""), Level::Ok);
        assert_eq!(level("--cores 3"), Level::Ok);
        assert_eq!(level("--cores 4"), Level::Problem);
        machine.process(0, 0, "0-1");
        assert_eq!(level(""), Level::Warning);
    }

    #[test]
    fn threads_of_one_core_are_found() {
        let machine = Machine::new();
        for cpu in [1, 3] {
            machine.file(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), "1,3\n");
        }
        assert!(siblings(&machine.host, &ask("--cores 1,2,3")).is_some());
        assert_eq!(siblings(&machine.host, &ask("--cores 1,2")), None);
    }

    #[test]
    fn a_quota_of_any_group_above_counts() {
        let machine = Machine::new();
        machine.file("/proc/self/cgroup", "0::/a.slice/b.service\n");
        machine.file("/sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n");
        assert_eq!(quota(&machine.host), None);
        machine.file("/sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n");
        let found = quota(&machine.host).unwrap();
        assert!(found.found.contains("1.5 cores") && found.found.contains("100 ms"), "{found:?}");
    }

    #[test]
    fn cores_far_from_the_nic_are_found() {
        let machine = Machine::new();
        machine.nic("eth1", 1500, "0000:03:00.0").file("/sys/devices/system/node/online", "0-1\n");
        machine.file("/sys/devices/system/node/node1/cpulist", "2-3\n");
        let found = |line| check(&machine.host, &ask(line));
        assert_eq!(only(&found("--port 0000:03:00.0 --cores 2"), "numa").level, Level::Ok);
        let far = found("--port net_af_packet0,iface=eth1 --cores 1,2");
        assert_eq!(only(&far, "numa").level, Level::Warning);
        assert!(only(&far, "numa").found.contains("core 1 is not"), "{far:?}");
        assert_eq!(only(&found("--port net_memif0 --cores 1"), "numa").level, Level::Ok);
    }

    #[test]
    fn isolation_governor_frequency_and_clock() {
        let machine = Machine::new();
        machine.file("/sys/devices/system/cpu/isolated", "2-3\n");
        for cpu in 0..4 {
            machine.file(
                &policy(cpu, "scaling_governor"),
                if cpu == 2 { "performance\n" } else { "powersave\n" },
            );
            machine.file(&policy(cpu, "cpuinfo_max_freq"), "3500000\n");
            machine.file(&policy(cpu, "scaling_max_freq"), if cpu == 1 { "1200000\n" } else { "3500000\n" });
        }
        let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        machine.file(clock, "hpet\n");
        let found = check(&machine.host, &ask("--port 0000:03:00.0 --cores 2"));
        let levels = ["isolation", "governor", "frequency", "clock"].map(|c| only(&found, c).level);
        assert_eq!(levels, [Level::Ok, Level::Ok, Level::Ok, Level::Warning]);
        machine.file(clock, "tsc\n");
        let found = check(&machine.host, &ask("--port 0000:03:00.0 --cores 1,2"));
        let levels = ["isolation", "governor", "frequency", "clock"].map(|c| only(&found, c).level);
        assert_eq!(levels, [Level::Warning, Level::Warning, Level::Warning, Level::Ok]);
        assert_eq!(only(&found, "frequency").found, "core 1 is held at 1200 of 3500 MHz");
        assert_eq!(only(&found, "governor").found, "core 1 has the governor powersave");
        let found = check(&machine.host, &ask(""));
        assert_eq!(only(&found, "isolation").mend.as_deref(), Some("--cores 2,3"));
        assert_eq!(only(&found, "governor").level, Level::Note);
    }
}

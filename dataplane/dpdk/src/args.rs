//! From a configuration to the arguments of the environment layer.

use std::fs;
use std::path::Path;

use crate::error::EalError;
use crate::log::LogLevel;

/// Whether packet memory lies on hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// If enough are free and this user may take them.
    #[default]
    Auto,
    /// Yes, or refuse to start. NICs need them.
    On,
    /// No. Virtual ports are as fast without.
    Off,
}

/// How to start the environment. Options that [`EalConfig::extra`] holds win over the fields.
#[derive(Debug, Clone, Default)]
pub struct EalConfig {
    /// Name of the program, the first argument; "spraywire" if empty.
    pub program: String,
    /// Hugepages or not.
    pub hugepages: HugePages,
    /// Memory for pools and rings, in MiB. Without hugepages it is only address space until it is touched, and 1024 by
    /// default; with them, DPDK takes pages as it needs them.
    pub memory_mb: Option<u32>,
    /// Prefix of DPDK's files. With none, the process leaves no files and cannot have secondary processes.
    pub file_prefix: Option<String>,
    /// Prefix of the folder in which DPDK's telemetry socket lies, for a process that shares nothing else; no socket if none.
    /// With [`EalConfig::file_prefix`] telemetry is on by DPDK's own rules.
    pub telemetry: Option<String>,
    /// Processors that DPDK may use, all that the process may use if none. Not pinning: the thread that starts DPDK keeps
    /// its own affinity.
    pub cores: Option<Vec<usize>>,
    /// Virtual devices, in DPDK's syntax: `net_memif0,role=server,id=0`. Attached after start, so that each failure can be
    /// told apart.
    pub vdevs: Vec<String>,
    /// PCI devices to use, in DPDK's syntax: `0000:03:00.0`. With none but some virtual devices, PCI is not looked at.
    pub allow: Vec<String>,
    /// More arguments, already split.
    pub extra: Vec<String>,
    /// How much DPDK logs; its own defaults if none.
    pub log_level: Option<LogLevel>,
    /// Whether DPDK's usage, which it prints when it does not like its arguments, goes to standard error: for a program whose
    /// standard output has results only, and no thread that prints while DPDK starts.
    pub usage_to_stderr: bool,
}

/// MiB of address space without hugepages, if the configuration does not say. DPDK's own default of 64 holds hardly more
/// than one pool.
const NO_HUGE_MB: u32 = 1024;

/// MiB of hugepages that must be free for [`HugePages::Auto`] to take them, if the configuration does not say: room for
/// two usual pools and their rings. With a few pages left over from something else, ordinary memory serves better.
const AUTO_HUGE_MB: u32 = 256;

/// What the machine has, apart from the configuration, so that the rules can be tested.
pub(crate) struct Machine {
    /// MiB of hugepages that are free.
    pub free_huge_mb: u64,
    /// Why files on hugepages cannot be made, or none.
    pub mount_problem: Option<String>,
    /// Processors that this thread may run on.
    pub cpus: Vec<usize>,
}

impl Machine {
    pub(crate) fn here(cpus: Vec<usize>) -> Machine {
        Machine {
            free_huge_mb: free_hugepages(Path::new("/sys/kernel/mm/hugepages")),
            mount_problem: mount_problem(Path::new("/proc/mounts")),
            cpus,
        }
    }

    /// Why this process cannot have hugepages of `mb` MiB altogether, or none.
    fn huge_problem(&self, mb: u32, files: bool) -> Option<String> {
        if self.free_huge_mb == 0 {
            return Some("none are free".into());
        }
        if self.free_huge_mb < u64::from(mb) {
            return Some(format!("only {} MiB of {mb} are free", self.free_huge_mb));
        }
        // Without shared files, the kernel gives hugepages to anybody.
        self.mount_problem.clone().filter(|_| files)
    }
}

/// Arguments for `rte_eal_init`, and whether hugepages will be used.
pub(crate) fn build(config: &EalConfig, machine: &Machine) -> Result<(Vec<String>, bool), EalError> {
    let given = |names: &[&str]| {
        config.extra.iter().any(|arg| {
            names.iter().any(|name| {
                arg == name
                    || (name.starts_with("--")
                        && arg.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
                    || (!name.starts_with("--") && !arg.starts_with("--") && arg.starts_with(name))
            })
        })
    };
    let program = if config.program.is_empty() { "spraywire" } else { &config.program };
    let mut args = vec![program.to_owned()];

    let files = config.file_prefix.is_some() || given(&["--file-prefix", "--huge-dir", "--proc-type"]);
    let huge = match config.hugepages {
        _ if given(&["--no-huge"]) => false,
        HugePages::Off => false,
        HugePages::On => match machine.huge_problem(config.memory_mb.unwrap_or(0), files) {
            None => true,
            Some(problem) => return Err(EalError::HugePages(problem)),
        },
        HugePages::Auto => match machine.huge_problem(config.memory_mb.unwrap_or(AUTO_HUGE_MB), files) {
            None => true,
            Some(problem) => {
                tracing::info!(
                    "no hugepages, since {problem}; ordinary memory is used, which suits virtual ports"
                );
                false
            }
        },
    };
    if !huge && !given(&["--no-huge"]) {
        args.push("--no-huge".into());
    }
    if !given(&["-m", "--socket-mem"]) {
        match config.memory_mb {
            Some(mb) => args.extend(["-m".into(), mb.to_string()]),
            None if !huge => args.extend(["-m".into(), NO_HUGE_MB.to_string()]),
            None => {}
        }
    }

    if !given(&["-l", "-c", "--lcores"]) {
        let cpus = config.cores.as_ref().filter(|cores| !cores.is_empty()).unwrap_or(&machine.cpus);
        if !cpus.is_empty() {
            let list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            // One lcore, whatever the processor: worker threads register themselves. More lcores would each start a
            // thread of DPDK's own that nobody uses.
            args.push(format!("--lcores=0@({list})"));
        }
    }

    match &config.file_prefix {
        Some(prefix) if !given(&["--file-prefix"]) => args.push(format!("--file-prefix={prefix}")),
        // Nothing shared: no file stays behind, and processes cannot clash. `--in-memory` says so too but is refused
        // together with `--no-huge`.
        None if !given(&["--file-prefix", "--in-memory", "--no-shconf", "--proc-type"]) => {
            args.push(if huge { "--in-memory" } else { "--no-shconf" }.into());
            if let Some(prefix) = &config.telemetry {
                args.extend([format!("--file-prefix={prefix}"), "--telemetry".into()]);
            } else if !given(&["--telemetry", "--no-telemetry"]) {
                args.push("--no-telemetry".into());
            }
        }
        _ => {}
    }

    for device in &config.allow {
        args.extend(["-a".into(), device.clone()]);
    }
    let pci_named = !config.allow.is_empty() || given(&["-a", "--allow", "-b", "--block"]);
    if !pci_named && !config.vdevs.is_empty() && !given(&["--no-pci"]) {
        args.push("--no-pci".into());
    }
    if let Some(level) = config.log_level
        && !given(&["--log-level"])
    {
        args.push(format!("--log-level=*:{level}"));
    }
    args.extend(config.extra.iter().cloned());
    Ok((args, huge))
}

/// MiB of hugepages that are free, over all sizes. `pages` is the kernel's folder of them.
fn free_hugepages(pages: &Path) -> u64 {
    let free = |size: fs::DirEntry| -> u64 {
        let read = |name| {
            let text = fs::read_to_string(size.path().join(name)).unwrap_or_default();
            text.trim().parse::<u64>().unwrap_or(0)
        };
        let name = size.file_name();
        let kib = name
            .to_str()
            .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok());
        read("free_hugepages").saturating_sub(read("resv_hugepages")).saturating_mul(kib.unwrap_or(0)) / 1024
    };
    fs::read_dir(pages).map(|sizes| sizes.flatten().map(free).sum()).unwrap_or(0)
}

/// Why this process cannot make files on hugepages, or none. It can if a hugetlbfs is mounted where it may write.
fn mount_problem(mounts: &Path) -> Option<String> {
    let text = fs::read_to_string(mounts).unwrap_or_default();
    let points: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (_, point, kind) = (words.next()?, words.next()?, words.next()?);
            (kind == "hugetlbfs").then_some(point)
        })
        .collect();
    if points.is_empty() {
        return Some("no hugetlbfs is mounted".into());
    }
    if points.iter().any(|point| writable(point)) {
        return None;
    }
    Some(format!("{} is not writable by this user", points.join(" and ")))
}

fn writable(path: &str) -> bool {
    let Ok(path) = std::ffi::CString::new(path) else { return false };
    // SAFETY: `path` is a zero-terminated string that lives through the call.
    unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(free_huge_mb: u64) -> Machine {
        Machine { free_huge_mb, mount_problem: Some("no hugetlbfs is mounted".into()), cpus: vec![0, 3] }
    }

    fn args(config: &EalConfig, free_huge_mb: u64) -> String {
        build(config, &machine(free_huge_mb)).unwrap().0.join(" ")
    }

    #[test]
    fn nothing_prepared() {
        let config = EalConfig { vdevs: vec!["net_null0".into()], ..EalConfig::default() };
        assert_eq!(
            args(&config, 0),
            "spraywire --no-huge -m 1024 --lcores=0@(0,3) --no-shconf --no-telemetry --no-pci"
        );
    }

    #[test]
    fn a_telemetry_socket_and_nothing_else_shared() {
        let vdevs = vec!["net_null0".into()];
        let config = EalConfig { vdevs, telemetry: Some("x".into()), ..EalConfig::default() };
        assert_eq!(
            args(&config, 0),
            "spraywire --no-huge -m 1024 --lcores=0@(0,3) --no-shconf --file-prefix=x --telemetry --no-pci"
        );
    }

    #[test]
    fn hugepages_and_a_nic() {
        let config = EalConfig {
            program: "bench".into(),
            memory_mb: Some(256),
            cores: Some(vec![2]),
            allow: vec!["0000:03:00.0".into()],
            log_level: Some(LogLevel::Debug),
            ..EalConfig::default()
        };
        assert_eq!(
            args(&config, 256),
            "bench -m 256 --lcores=0@(2) --in-memory --no-telemetry -a 0000:03:00.0 --log-level=*:debug"
        );
    }

    #[test]
    fn the_users_options_win() {
        let extra =
            ["--no-huge", "-m64", "-l", "1", "--file-prefix=mine", "--log-level=8", "-b", "0000:01:00.0"];
        let config = EalConfig {
            hugepages: HugePages::On,
            memory_mb: Some(512),
            file_prefix: Some("ours".into()),
            vdevs: vec!["net_null0".into()],
            extra: extra.map(str::to_owned).to_vec(),
            log_level: Some(LogLevel::Error),
            ..EalConfig::default()
        };
        assert_eq!(args(&config, 0), format!("spraywire {}", extra.join(" ")));
    }

    #[test]
    fn a_long_option_is_not_taken_for_another() {
        let config =
            EalConfig { extra: vec!["--lcores-x=1".into(), "--main-lcore=0".into()], ..EalConfig::default() };
        let args = args(&config, 0);
        assert!(args.contains("--lcores=0@(0,3)"), "{args}");
        assert!(args.contains("-m 1024"), "{args}");
    }

    #[test]
    fn hugepages_demanded_and_missing() {
        let refused = |config: &EalConfig, free| match build(config, &machine(free)) {
            Err(EalError::HugePages(problem)) => problem,
            other => panic!("{other:?}"),
        };
        let config = EalConfig { hugepages: HugePages::On, ..EalConfig::default() };
        assert_eq!(refused(&config, 0), "none are free");
        assert!(build(&config, &machine(2)).unwrap().1, "any will do");
        let config = EalConfig { memory_mb: Some(512), ..config };
        assert_eq!(refused(&config, 510), "only 510 MiB of 512 are free");
        assert!(build(&config, &machine(512)).unwrap().1);
        let config = EalConfig { file_prefix: Some("shared".into()), ..config };
        assert_eq!(refused(&config, 512), "no hugetlbfs is mounted");
        assert!(EalError::HugePages("x".into()).to_string().contains("nr_hugepages"));
    }

    #[test]
    fn a_few_hugepages_are_left_alone() {
        let config = EalConfig::default();
        assert!(!build(&config, &machine(255)).unwrap().1);
        assert!(build(&config, &machine(256)).unwrap().1);
        let config = EalConfig { memory_mb: Some(64), ..config };
        assert!(build(&config, &machine(64)).unwrap().1);
    }

    #[test]
    fn hugepages_are_looked_for_where_the_kernel_tells() {
        let dir = std::env::temp_dir().join(format!("spw-huge-{}", std::process::id()));
        for (size, free, reserved) in [("2048kB", "40\n", "8\n"), ("1048576kB", "1\n", "0\n")] {
            let size = dir.join(format!("pages/hugepages-{size}"));
            fs::create_dir_all(&size).unwrap();
            fs::write(size.join("free_hugepages"), free).unwrap();
            fs::write(size.join("resv_hugepages"), reserved).unwrap();
        }
        assert_eq!(free_hugepages(&dir.join("pages")), 64 + 1024);
        assert_eq!(free_hugepages(&dir.join("nowhere")), 0);

        let mounts = dir.join("mounts");
        let check = |mount: &str| {
            fs::write(&mounts, mount).unwrap();
            mount_problem(&mounts)
        };
        assert_eq!(check("proc /proc proc rw 0 0\n"), Some("no hugetlbfs is mounted".into()));
        assert_eq!(check(&format!("hugetlbfs {} hugetlbfs rw 0 0\n", dir.display())), None);
        let lost = check("hugetlbfs /does/not/exist hugetlbfs rw 0 0\n");
        assert_eq!(lost, Some("/does/not/exist is not writable by this user".into()));
        fs::remove_dir_all(&dir).unwrap();
    }
}

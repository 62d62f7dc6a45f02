//! What the machine tells of itself in `/proc`, `/sys` and a few other folders.
//!
//! Everything is read below a root that tests replace by a folder of their own. What is not there, or may not be read, is
//! absent and no error: kernels, containers and virtual machines each leave something out.

pub mod net;
pub mod numa;
pub mod pci;
pub mod use_of_files;

use crate::units;
use std::fs;
use std::path::{Path, PathBuf};

/// The root of what is looked at, and what the environment of this process adds.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    xdg_runtime: Option<String>,
}

/// What this process is and may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Effective user.
    pub uid: u32,
    /// Effective capabilities, a mask; all of them if the kernel does not say.
    pub caps: u64,
    /// Processors that it may run on; none if the kernel does not say.
    pub cpus: Vec<usize>,
}

impl Host {
    /// The machine that this process runs on.
    pub fn here() -> Host {
        Host { root: PathBuf::from("/"), xdg_runtime: std::env::var("XDG_RUNTIME_DIR").ok() }
    }

    /// A machine whose files lie below `root`.
    pub fn under(root: &Path) -> Host {
        Host { root: root.to_owned(), xdg_runtime: None }
    }

    /// Where the file lies that this machine calls `path`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the spaces around it.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<i64> {
        self.read(path)?.parse().ok()
    }

    /// Bytes of memory that can be taken without swapping, as the kernel estimates it.
    pub fn memory(&self) -> Option<u64> {
        let text = self.read("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Refuses to take more memory than there is: the kernel would promise it, and end this process or another when it is used.
    ///
    /// # Errors
    /// What it comes to and what there is, in MiB. A kernel that does not say what there is forbids nothing.
    pub fn check_memory(&self, bytes: u64) -> Result<(), String> {
        match self.memory() {
            Some(have) if bytes > have => Err(format!(
                "its messages take {} MiB of memory here, and {} MiB are left: use a smaller -s",
                bytes >> 20,
                have >> 20
            )),
            _ => Ok(()),
        }
    }

    /// A file that holds a list of processors or nodes: `0-3,8`. Empty if it holds none.
    pub fn cpu_list(&self, path: &str) -> Option<Vec<usize>> {
        let text = self.read(path)?;
        if text.is_empty() { Some(Vec::new()) } else { units::cores(&text).ok() }
    }

    /// The names in a folder, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The last part of what a symbolic link points to.
    pub fn target(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Whether there is anything of that name.
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether this process may read and write the file.
    pub fn usable(&self, path: &str) -> bool {
        fs::OpenOptions::new().read(true).write(true).open(self.path(path)).is_ok()
    }

    /// This process.
    pub fn process(&self) -> Process {
        let status = self.read("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        let uid = field("Uid:").and_then(|l| l.split_whitespace().nth(1)?.parse().ok());
        let caps = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let cpus = field("Cpus_allowed_list:").and_then(|list| units::cores(list).ok());
        Process {
            uid: uid.unwrap_or(u32::MAX),
            caps: caps.unwrap_or(u64::MAX),
            cpus: cpus.unwrap_or_default(),
        }
    }

    /// The folder below which DPDK keeps a folder for each of its primary processes: see "EAL runtime directory" in DPDK's
    /// guide for Linux.
    pub fn dpdk_runtime(&self) -> String {
        if self.process().uid == 0 {
            return "/var/run/dpdk".to_owned();
        }
        format!("{}/dpdk", self.xdg_runtime.as_deref().unwrap_or("/tmp"))
    }

    /// Where file systems of a kind are mounted.
    pub fn mounts(&self, kind: &str) -> Vec<String> {
        let text = self.read("/proc/mounts").unwrap_or_default();
        let mount = |line: &str| {
            let mut words = line.split_whitespace();
            let (_, point, of) = (words.next()?, words.next()?, words.next()?);
            (of == kind).then(|| point.to_owned())
        };
        text.lines().filter_map(mount).collect()
    }
}

#[cfg(test)]
pub mod made_up {
    //! Machines for tests.

    use super::Host;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// A machine of which only those files exist that a test made.
    pub struct Machine {
        folder: tempfile::TempDir,
        /// To look at it.
        pub host: Host,
    }

    impl Default for Machine {
        fn default() -> Machine {
            Machine::new()
        }
    }

    impl Machine {
        /// A machine with nothing, whose process is root on processors 0 to 3.
        pub fn new() -> Machine {
            let folder = tempfile::tempdir().unwrap();
            let host = Host::under(folder.path());
            let machine = Machine { folder, host };
            machine.process(0, 0x1ff_ffff_ffff, "0-3");
            machine
        }

        /// Writes a file.
        pub fn file(&self, path: &str, text: &str) -> &Machine {
            let path = self.host.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// Makes a folder.
        pub fn folder(&self, path: &str) -> &Machine {
            fs::create_dir_all(self.host.path(path)).unwrap();
            self
        }

        /// Makes a link to nothing that has this name.
        pub fn link(&self, path: &str, name: &str) -> &Machine {
            let path = self.host.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(Path::new("../elsewhere").join(name), path).unwrap();
            self
        }

        /// Says what this process is.
        pub fn process(&self, uid: u32, caps: u64, cpus: &str) -> &Machine {
            let status = format!("Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{caps:016x}\n");
            self.file("/proc/self/status", &format!("{status}Cpus_allowed_list:\t{cpus}\n"))
        }

        /// An interface of the kernel on a PCI device.
        pub fn nic(&self, name: &str, mtu: u32, pci: &str) -> &Machine {
            let of = |file: &str| format!("/sys/class/net/{name}/{file}");
            self.file(&of("address"), "02:00:00:00:00:01\n").file(&of("mtu"), &format!("{mtu}\n"));
            self.file(&of("operstate"), "up\n").file(&of("type"), "1\n").folder(&of("queues/rx-0"));
            self.folder(&of("queues/tx-0")).file(&of("device/numa_node"), "1\n");
            self.link(&of("device/driver"), "mlx5_core");
            self.file(&format!("/sys/bus/pci/devices/{pci}/class"), "0x020000\n");
            self.file(&format!("/sys/bus/pci/devices/{pci}/vendor"), "0x15b3\n");
            self.file(&format!("/sys/bus/pci/devices/{pci}/device"), "0x1019\n");
            self.file(&format!("/sys/bus/pci/devices/{pci}/numa_node"), "1\n");
            self.folder(&format!("/sys/bus/pci/devices/{pci}/net/{name}"));
            self.link(&format!("/sys/bus/pci/devices/{pci}/driver"), "mlx5_core")
        }

        /// Where it lies.
        pub fn root(&self) -> &Path {
            self.folder.path()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::Machine;

    #[test]
    fn a_process_is_read_from_its_status() {
        let machine = Machine::new();
        machine.process(1000, 0x3000, "0,2-3");
        let process = machine.host.process();
        assert_eq!((process.uid, process.caps, process.cpus), (1000, 0x3000, vec![0, 2, 3]));
        assert_eq!(machine.host.dpdk_runtime(), "/tmp/dpdk");
        machine.file("/proc/self/status", "Name:\tx\n");
        let process = machine.host.process();
        assert_eq!(
            (process.caps, process.cpus),
            (u64::MAX, vec![]),
            "what the kernel does not say forbids nothing"
        );
    }

    #[test]
    fn memory_that_there_is_not_is_refused_with_the_numbers() {
        let machine = Machine::new();
        assert_eq!(machine.host.check_memory(u64::MAX), Ok(()), "nobody says what there is");
        machine.file("/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    3072 kB\nBuffers: 1 kB\n");
        assert_eq!(machine.host.memory(), Some(3 << 20));
        assert_eq!(machine.host.check_memory(3 << 20), Ok(()));
        let refused = machine.host.check_memory(5 << 20).unwrap_err();
        assert!(refused.contains("take 5 MiB") && refused.contains("3 MiB are left"), "{refused}");
    }

    #[test]
    fn what_is_not_there_is_absent() {
        let machine = Machine::new();
        let host = &machine.host;
        assert_eq!(host.read("/sys/nothing"), None);
        assert!(host.list("/sys/nothing").is_empty());
        machine
            .file("/sys/devices/system/cpu/isolated", "\n")
            .file("/proc/mounts", "none /dev/huge hugetlbfs rw 0 0\n");
        assert_eq!(host.cpu_list("/sys/devices/system/cpu/isolated"), Some(vec![]));
        assert_eq!(host.mounts("hugetlbfs"), ["/dev/huge"]);
        assert!(host.path("/etc").starts_with(machine.root()));
    }
}

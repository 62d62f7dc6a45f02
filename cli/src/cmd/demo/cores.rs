//! Which cores the two processes take.

use crate::args::CoresArg;
use crate::cmd::measure::WorkerKind;
use crate::error::Error;
use dataplane::idle::{allowed_cores, pin_current_thread};
use std::collections::BTreeSet;
use std::fmt;

/// The cores of either side; none where the system is left to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    client: Vec<usize>,
    server: Vec<usize>,
}

impl Cores {
    /// Those asked for, or cores that share as little as possible. Where there is only one, this process is bound to it,
    /// and the server inherits that: both then know that they share it.
    ///
    /// # Errors
    /// A core that may not be used.
    pub fn choose(asked: Option<&CoresArg>, worker: WorkerKind) -> Result<Cores, Error> {
        let threads = if worker == WorkerKind::Thread { 2 } else { 1 };
        let list = match asked {
            Some(CoresArg(list)) => list.clone(),
            None => spread(&allowed_cores(), physical, 2 * threads),
        };
        if let [only] = list[..] {
            pin_current_thread(only).map_err(Error::usage)?;
        }
        Ok(Cores::split(&list, threads))
    }

    fn split(list: &[usize], threads: usize) -> Cores {
        match list.len() {
            0 => Cores { client: Vec::new(), server: Vec::new() },
            1 => Cores { client: list.to_vec(), server: list.to_vec() },
            n => {
                let (client, server) = list.split_at(n / 2);
                let some = |part: &[usize]| part[..threads.min(part.len())].to_vec();
                Cores { client: some(client), server: some(server) }
            }
        }
    }

    /// The client's.
    pub fn client(&self) -> Option<CoresArg> {
        Some(CoresArg(self.client.clone())).filter(|c| !c.0.is_empty())
    }

    /// The server's.
    pub fn server(&self) -> Option<CoresArg> {
        Some(CoresArg(self.server.clone())).filter(|c| !c.0.is_empty())
    }
}

/// `core 0 (client) and core 1 (server)`.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |list: &[usize]| {
            let s = if list.len() == 1 { "" } else { "s" };
            format!("core{s} {}", list.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
        };
        match (self.client.is_empty(), self.client == self.server) {
            (true, _) => f.write_str("any core"),
            (_, true) => write!(f, "{} (both sides)", name(&self.client)),
            _ => write!(f, "{} (client) and {} (server)", name(&self.client), name(&self.server)),
        }
    }
}

/// `count` of `allowed`, of different physical cores as far as there are enough; fewer if there are not so many.
fn spread(allowed: &[usize], physical: impl Fn(usize) -> Option<(usize, usize)>, count: usize) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let (first, again): (Vec<usize>, Vec<usize>) =
        allowed.iter().partition(|&&cpu| physical(cpu).is_none_or(|core| seen.insert(core)));
    let mut chosen: Vec<usize> = first.into_iter().chain(again).take(count).collect();
    if chosen.len() % 2 == 1 && chosen.len() > 1 {
        chosen.pop();
    }
    chosen
}

/// Package and core of a CPU, where the system says.
fn physical(cpu: usize) -> Option<(usize, usize)> {
    let read = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some((read("physical_package_id")?, read("core_id")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_are_taken_last() {
        // Two packages of two cores of two threads, numbered as Linux does on x86.
        let core = |cpu: usize| Some((cpu / 2 % 2, cpu % 2));
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(spread(&all, core, 2), [0, 1]);
        assert_eq!(spread(&[0, 4, 1], core, 2), [0, 1]);
        assert_eq!(spread(&[0, 4], core, 2), [0, 4]);
        assert_eq!(spread(&all, core, 4), [0, 1, 2, 3]);
        assert_eq!(spread(&[3, 5, 9], |_| None, 4), [3, 5], "both sides get the same number");
        assert_eq!(spread(&[7], core, 4), [7]);
        assert!(spread(&[], core, 2).is_empty());
    }

    #[test]
    fn both_sides_get_their_part() {
        let text = |list: &[usize], threads| Cores::split(list, threads).to_string();
        assert_eq!(text(&[0, 1], 1), "core 0 (client) and core 1 (server)");
        assert_eq!(text(&[0, 1, 4, 5], 2), "cores 0,1 (client) and cores 4,5 (server)");
        assert_eq!(text(&[0, 1, 4, 5], 1), "core 0 (client) and core 4 (server)");
        assert_eq!(text(&[3], 2), "core 3 (both sides)");
        assert_eq!(text(&[], 1), "any core");
    }
}

//! NUMA nodes: which processors are near a device, and which reach it across the machine.

use super::Host;
use std::fmt::Write;

/// The nodes that there are; none if the kernel does not say.
pub fn nodes(host: &Host) -> Vec<usize> {
    host.cpu_list("/sys/devices/system/node/online").unwrap_or_default()
}

/// Processors that are not on the node of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Far {
    /// The node.
    pub node: u32,
    /// Those in question that are elsewhere, at least one.
    pub cores: Vec<usize>,
    /// Those of the node, whether in question or not.
    pub near: Vec<usize>,
}

/// Which of `cores` are not on `node`. `None` if all of them are, or the kernel does not say.
pub fn far(host: &Host, node: u32, cores: &[usize]) -> Option<Far> {
    if nodes(host).len() < 2 {
        return None;
    }
    let near = host.cpu_list(&format!("/sys/devices/system/node/node{node}/cpulist"))?;
    let cores: Vec<usize> = cores.iter().copied().filter(|core| !near.contains(core)).collect();
    (!cores.is_empty()).then_some(Far { node, cores, near })
}

impl Far {
    /// What is wrong.
    pub fn found(&self) -> String {
        let (s, are) = if self.cores.len() == 1 { ("", "is") } else { ("s", "are") };
        let (node, cores) = (self.node, list(&self.cores));
        format!(
            "the port is on NUMA node {node}, core{s} {cores} {are} not: each packet crosses between them"
        )
    }

    /// What helps: as many near processors as are in question, or all where there are fewer.
    pub fn mend(&self) -> String {
        if self.near.is_empty() {
            return format!("node {} has no processors: move the NIC to a slot of another one", self.node);
        }
        format!("--cores with some of {}", list(&self.near))
    }
}

/// Says in the log that threads which poll a port of `node` are pinned to processors of another node; or, if they are pinned to
/// none, where they would run best.
pub fn say_if_far(host: &Host, node: u32, pinned: Option<&[usize]>) {
    let Some(far) = far(host, node, pinned.unwrap_or(&host.process().cpus)) else { return };
    if pinned.is_some() {
        tracing::warn!("{}; {}", far.found(), far.mend());
    } else {
        tracing::info!("the port is on NUMA node {node}: {}", far.mend());
    }
}

/// Processors as the flags take them.
pub fn list(cpus: &[usize]) -> String {
    let mut text = String::new();
    for (i, cpu) in cpus.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{}{cpu}", if i == 0 { "" } else { "," });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::made_up::Machine;

    #[test]
    fn cores_of_another_node_are_far() {
        let machine = Machine::new();
        let node = "/sys/devices/system/node";
        assert_eq!(far(&machine.host, 1, &[0]), None, "of a machine that says nothing, nothing is said");
        machine.file(&format!("{node}/online"), "0-1\n").file(&format!("{node}/node1/cpulist"), "2-3\n");
        machine.file(&format!("{node}/node0/cpulist"), "0-1\n");
        assert_eq!(nodes(&machine.host), [0, 1]);
        assert_eq!(far(&machine.host, 1, &[2, 3]), None);
        let found = far(&machine.host, 1, &[0, 2]).unwrap();
        assert_eq!(found, Far { node: 1, cores: vec![0], near: vec![2, 3] });
        assert_eq!(
            (found.found().as_str(), found.mend().as_str()),
            (
                "the port is on NUMA node 1, core 0 is not: each packet crosses between them",
                "--cores with some of 2,3"
            )
        );
        assert!(far(&machine.host, 1, &[0, 1]).unwrap().found().contains("cores 0,1 are not"));
        assert_eq!(far(&machine.host, 7, &[0]), None, "a node that the kernel does not know");
        machine.file(&format!("{node}/online"), "0\n");
        assert_eq!(far(&machine.host, 1, &[0]), None, "one node is near everything");
    }

    #[test]
    fn a_node_without_processors_is_told_so() {
        let machine = Machine::new();
        machine.file("/sys/devices/system/node/online", "0-1\n");
        machine.file("/sys/devices/system/node/node1/cpulist", "\n");
        let found = far(&machine.host, 1, &[3]).unwrap();
        assert!(found.mend().contains("no processors"), "{found:?}");
    }
}

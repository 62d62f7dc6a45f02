//! Instructions of an operation, counted by valgrind: the same on every machine of a kind, however busy it is.

use super::Op;
use crate::child::{Child, Failure, Stop};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Iterations of the two runs; what they differ by is the operation alone.
const ITERS: [u64; 2] = [1_000, 11_000];
/// For one run: the program's start takes longer than the iterations.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether valgrind is there.
pub fn installed() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("valgrind").is_file()))
}

/// Instructions per packet.
pub fn instructions(this_program: &Path, op: Op, size: usize, stop: &Stop) -> Result<f64, Failure> {
    let count = |iters: u64| {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-fd=1"]).arg(this_program);
        command.args(["repeat", op.name(), &size.to_string(), &iters.to_string()]);
        let output = Child::start("valgrind", &mut command, stop)?.finish(LIMIT)?;
        collected(&output).ok_or_else(|| Failure::Said(format!("valgrind told no count:\n{output}")))
    };
    let [few, many] = ITERS;
    let (base, all) = (count(few)?, count(many)?);
    Ok(all.saturating_sub(base) as f64 / (many - few) as f64)
}

/// The number in `==123== Collected : 27623`.
fn collected(output: &str) -> Option<u64> {
    output.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        let output = "==7== Callgrind, a call-graph generating cache profiler\n==7== Events    : Ir\n\
                      ==7== Collected : 27623\n==7== \n==7== I   refs:      27,623\n";
        assert_eq!(collected(output), Some(27_623));
        assert_eq!(collected("==7== Collected : \n"), None);
        assert_eq!(collected(""), None);
    }
}

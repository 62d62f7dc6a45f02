//! What `spraywire stats` says of running endpoints.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The endpoint of that name or process number which has its socket in a folder; null while there is none.
pub fn stats(folder: &Path, which: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spraywire"));
    command.args(["stats", which, "--json"]).env("SPRAYWIRE_RUNTIME_DIR", folder);
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    report["endpoints"][0].clone()
}

/// The packets that a port delivered, answered, ignored or dropped.
pub fn fates(port: &Value) -> u64 {
    let counters = &port["counters"];
    let dropped = counters["dropped"].as_object().into_iter().flatten().map(|(_, n)| n);
    let own = ["delivered", "neighbour", "echo", "ignored"].iter().map(|name| &counters[name]);
    own.chain(dropped).filter_map(Value::as_u64).sum()
}

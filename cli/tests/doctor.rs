//! `spraywire ports` and `spraywire doctor` on this very machine, as nobody, so that nothing depends on privileges.
#![cfg(feature = "dpdk")]

mod common;

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program with a runtime folder of its own.
fn unprivileged(program: &Path, runtime: &Path) -> Command {
    let mut command = if rustix::process::getuid().is_root() {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(program);
        setpriv
    } else {
        Command::new(program)
    };
    command.env("XDG_RUNTIME_DIR", runtime).env_remove("RUST_LOG");
    command.stdin(Stdio::null());
    command
}

/// A folder that nobody may read.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The findings of a check, as level and text.
fn findings<'a>(report: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let all = report["findings"].as_array().unwrap();
    let of = all.iter().filter(|f| f["check"] == check);
    of.map(|f| (f["level"].as_str().unwrap(), f["found"].as_str().unwrap())).collect()
}

#[test]
fn ports_names_the_loopback_and_the_usual_drivers() {
    let program = common::copied();
    let output = unprivileged(&program.path, folder().path()).args(["ports", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report = json(&output);
    assert_eq!((report["schema"].as_str(), report["command"].as_str()), (Some("spraywire/1"), Some("ports")));
    let interfaces = report["interfaces"].as_array().unwrap();
    let lo = interfaces.iter().find(|i| i["name"] == "lo").expect("every machine has a loopback");
    assert_eq!((lo["mtu"].as_u64(), lo["loopback"].as_bool()), (Some(65536), Some(true)));
    let drivers = report["drivers"].as_array().unwrap();
    let driver =
        |name: &str| drivers.iter().find(|d| d["name"] == name).unwrap_or_else(|| panic!("{drivers:?}"));
    assert_eq!(driver("memif")["lacks"], serde_json::json!([]));
    assert_eq!(driver("af_packet")["lacks"], serde_json::json!(["CAP_NET_RAW"]), "it runs as nobody");
    // For people, the same in a table.
    let output = unprivileged(&program.path, folder().path()).arg("ports").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("--port net_memif0,role=server,id=0"), "{text}");
}

#[test]
fn ports_says_what_an_opened_port_can_do() {
    let program = common::copied();
    let args = ["ports", "--port", "net_null0", "--json"];
    let output = unprivileged(&program.path, folder().path()).args(args).output().unwrap();
    let report = json(&output);
    let ports = report["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 1, "{report}");
    assert_eq!(
        (ports[0]["name"].as_str(), ports[0]["driver"].as_str()),
        (Some("net_null0"), Some("net_null"))
    );
    assert!(ports[0]["rss"].as_array().unwrap().contains(&"ipv4-udp".into()), "{report}");
    assert_eq!(ports[0]["mtu_enforced"], false);
}

#[test]
fn doctor_finds_leftovers_and_spares_the_living() {
    let program = common::copied();
    let runtime = folder();
    for process in ["dead", "alive"] {
        fs::create_dir_all(runtime.path().join("dpdk").join(process)).unwrap();
    }
    fs::write(runtime.path().join("dpdk/dead/config"), "x").unwrap();
    let held = File::create(runtime.path().join("dpdk/alive/config")).unwrap();
    held.lock().unwrap();
    let doctor = || {
        let output = unprivileged(&program.path, runtime.path()).args(["doctor", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "nothing is asked for that this machine has not");
        json(&output)
    };
    let report = doctor();
    assert_eq!(report["ok"], true);
    let stale = |report: &Value, process: &str| {
        let path = format!("dpdk/{process} ");
        findings(report, "stale").iter().any(|(level, found)| *level == "note" && found.contains(&path))
    };
    assert!(stale(&report, "dead"), "{report:#}");
    assert!(!stale(&report, "alive"), "{report:#}");
    drop(held);
    assert!(stale(&doctor(), "alive"), "its process let go");
}

#[test]
fn doctor_says_what_a_port_lacks_before_it_is_used() {
    let program = common::copied();
    let doctor = |args: &str| {
        let mut command = unprivileged(&program.path, folder().path());
        let output = command.args(["doctor", "--json"]).args(args.split(' ')).output().unwrap();
        (output.status.code(), json(&output))
    };
    let (code, report) = doctor("--port net_af_packet0,iface=spw-none --ip 192.0.2.1 --ip 127.0.0.1");
    assert_eq!((code, &report["ok"]), (Some(1), &Value::Bool(false)));
    assert_eq!(findings(&report, "interface")[0].0, "problem");
    assert!(findings(&report, "rights")[0].1.contains("CAP_NET_RAW"), "{report:#}");
    assert_eq!(findings(&report, "port")[0].0, "problem", "DPDK says so too");
    assert!(findings(&report, "address")[0].1.contains("127.0.0.1"), "{report:#}");

    let (code, report) = doctor("--port net_null0 --ip 127.0.0.1 --mtu 1500 -m 4096");
    assert_eq!(code, Some(1));
    // The kernel never sees what goes over such a port.
    assert!(findings(&report, "address").is_empty(), "{report:#}");
    assert!(findings(&report, "mtu")[0].1.contains("needs a port MTU of 4172"), "{report:#}");
    assert_eq!(findings(&report, "port")[0].0, "ok");
}

//! `spraywire stats`: what a running endpoint has done so far.

use crate::args::OutputArgs;
use crate::error::{Error, Exit};
use crate::observe::runtime;
use crate::report::Document;
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write;

const AFTER: &str = "\
Asks the endpoints of this user (bw, lat, ud, demo, programs under verbs) that run now: by a socket that each has in SPRAYWIRE_RUNTIME_DIR, else in \
XDG_RUNTIME_DIR/spraywire, else for root in /run/spraywire. Exit code 1 if there is none, or one does not answer.

Examples:
  spraywire stats
  spraywire stats 1234
  spraywire stats receiver --json          an endpoint that was started with --name receiver
  watch -n 1 spraywire stats receiver";

/// Arguments of `stats`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct StatsArgs {
    /// The process number or the name of one endpoint; all of them if not given
    #[arg(value_name = "PID|NAME")]
    pub which: Option<String>,

    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &StatsArgs) -> Result<Exit, Error> {
    let json = args.output.json();
    json.check()?;
    let folder = runtime::folder();
    let (mut endpoints, mut names, mut silent) = (Vec::new(), Vec::new(), false);
    for (pid, path) in runtime::endpoints(&folder) {
        let wanted_pid = args.which.as_ref().and_then(|w| w.parse::<u32>().ok());
        if wanted_pid.is_some_and(|wanted| wanted != pid) {
            names.push(pid.to_string());
            continue;
        }
        match runtime::ask(&path) {
            Ok(endpoint) => {
                let name = endpoint["name"].as_str();
                names.push(name.map_or(pid.to_string(), |n| format!("{pid} ({n})")));
                if wanted_pid.is_some() || args.which.is_none() || args.which.as_deref() == name {
                    endpoints.push(endpoint);
                }
            }
            Err(e) => {
                tracing::warn!("endpoint {pid} does not answer: {e}");
                silent = true;
            }
        }
    }
    if endpoints.is_empty() {
        return Err(none(args, &names, &folder));
    }
    let mut out = json.text();
    for endpoint in &endpoints {
        out.line(text(endpoint).trim_end())?;
        silent |= endpoint["workers"].as_array().is_none_or(|all| all.iter().any(|w| w["answers"] != true));
    }
    out.flush()?;
    let mut document = Document::new("stats", &json!({ "which": args.which }));
    document.set("endpoints", &endpoints);
    document.write(&json)?;
    Ok(if silent { Exit::Failed } else { Exit::Ok })
}

fn none(args: &StatsArgs, names: &[String], folder: &std::path::Path) -> Error {
    let what = match &args.which {
        Some(which) => format!("no endpoint {which} runs"),
        None => "no endpoint runs".to_owned(),
    };
    let hint = if names.is_empty() {
        format!(
            "looked in {}; one of another user, or with another {}, is not seen from here",
            folder.display(),
            runtime::VARIABLE
        )
    } else {
        format!("these do: {}", names.join(", "))
    };
    Error::failed(what).hint(hint)
}

/// An endpoint for people.
fn text(endpoint: &Value) -> String {
    let mut text = String::new();
    let name = endpoint["name"].as_str().map_or(String::new(), |n| format!(" {n}"));
    let uptime = endpoint["uptime_s"].as_f64().unwrap_or_default();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{}{name}, since {uptime:.0} s: {}",
        endpoint["pid"],
        endpoint["command_line"].as_str().unwrap_or_default()
    );
    for worker in list(&endpoint["workers"]) {
        if worker["answers"] != true {
            let _ = writeln!(text, "  its poll loop does not answer: it starts, ends, or stands still");
        }
        for port in list(&worker["ports"]) {
            port_text(&mut text, port);
        }
        qps_text(&mut text, worker);
    }
    text
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn port_text(text: &mut String, port: &Value) {
    let word = |name: &str| port[name].as_str().unwrap_or_default();
    let addrs: Vec<&str> = list(&port["addrs"]).iter().filter_map(Value::as_str).collect();
    let link = match port["link_up"].as_bool() {
        Some(true) => "up",
        Some(false) => "down",
        None => "unknown",
    };
    let _ = writeln!(
        text,
        "  port {} ({}), link {link}, MAC address {}, MTU {}, IB MTU {}, {}",
        word("name"),
        word("driver"),
        word("mac"),
        port["mtu"],
        port["ib_mtu"],
        addrs.join(" ")
    );
    let (c, d) = (&port["counters"], &port["driver_counters"]);
    if c.is_null() {
        return;
    }
    let _ = writeln!(
        text,
        "    received {} packets, {} bytes: delivered {}, neighbour {}, echo {}, ignored {}, dropped {}",
        c["rx_packets"],
        c["rx_bytes"],
        c["delivered"],
        c["neighbour"],
        c["echo"],
        c["ignored"],
        drops(&c["dropped"])
    );
    let _ = writeln!(
        text,
        "    sent {} packets, {} bytes, and {} of control; refused {} for a busy port, {} for want of buffers",
        c["tx_packets"], c["tx_bytes"], c["tx_control"], c["tx_busy"], c["tx_no_buffer"]
    );
    let _ = writeln!(
        text,
        "    driver: received {}, missed {}, errors {}, no buffer {}; sent {}, errors {}",
        d["rx_packets"], d["rx_missed"], d["rx_errors"], d["rx_no_mbuf"], d["tx_packets"], d["tx_errors"]
    );
    if c["link_lost"] != 0 {
        let _ =
            writeln!(text, "    the link went down {} times and came up {}", c["link_lost"], c["link_back"]);
    }
    let q = &port["queue"];
    if !q.is_null() {
        let which =
            q["index"].as_u64().map_or("no queue of its own".to_owned(), |index| format!("queue {index}"));
        let _ = writeln!(
            text,
            "    {which}: received {}, sent {}; from other workers {}, to them {}, dropped as they took none {}",
            q["rx_packets"], q["tx_packets"], q["steered_in"], q["steered_out"], q["steer_full"]
        );
    }
}

/// The sum, and the reasons: `3 (icrc 1, no_receive 2)`.
fn drops(dropped: &Value) -> String {
    let Some(reasons) = dropped.as_object().filter(|all| !all.is_empty()) else { return "0".to_owned() };
    let sum: u64 = reasons.values().filter_map(Value::as_u64).sum();
    let each: Vec<String> = reasons.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    format!("{sum} ({})", each.join(", "))
}

fn qps_text(text: &mut String, worker: &Value) {
    let shown = list(&worker["qps"]);
    for qp in shown {
        let _ = writeln!(
            text,
            "    queue pair {:#08x} {}: sent {}, received {}; {} sends and {} receives outstanding",
            qp["qpn"].as_u64().unwrap_or_default(),
            qp["state"].as_str().unwrap_or_default(),
            qp["sent"],
            qp["received"],
            qp["outstanding"],
            qp["receives"]
        );
    }
    let count = worker["qp_count"].as_u64().unwrap_or_default();
    if count > shown.len() as u64 {
        let _ = writeln!(text, "    and {} more queue pairs", count - shown.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_summed_and_named() {
        assert_eq!(drops(&json!({})), "0");
        assert_eq!(drops(&json!({"icrc": 1, "no_receive": 2})), "3 (icrc 1, no_receive 2)");
    }

    #[test]
    fn an_endpoint_reads_well() {
        let endpoint = json!({
            "pid": 12, "name": "rx", "uptime_s": 3.4, "command_line": "spraywire ud recv",
            "workers": [{ "answers": true, "qp_count": 3,
                "ports": [{ "name": "p0", "driver": "memory", "mac": "m", "addrs": ["a", "b"], "mtu": 1500, "ib_mtu": 1024, "link_up": true }],
                "qps": [{ "qpn": 65536, "state": "rts", "sent": 1, "received": 2, "outstanding": 0, "receives": 9 }] }],
        });
        let expected = "12 rx, since 3 s: spraywire ud recv\n  \
            port p0 (memory), link up, MAC address m, MTU 1500, IB MTU 1024, a b\n    \
            queue pair 0x010000 rts: sent 1, received 2; 0 sends and 9 receives outstanding\n    \
            and 2 more queue pairs\n";
        assert_eq!(text(&endpoint), expected);
        let shared = json!({ "name": "p0", "counters": { "link_lost": 2, "link_back": 1 },
            "queue": { "index": 1, "rx_packets": 9, "tx_packets": 8, "steered_in": 7, "steered_out": 6, "steer_full": 5 } });
        let mut text_of_port = String::new();
        port_text(&mut text_of_port, &shared);
        let lines = "    the link went down 2 times and came up 1\n    \
            queue 1: received 9, sent 8; from other workers 7, to them 6, dropped as they took none 5\n";
        assert!(text_of_port.ends_with(lines), "{text_of_port}");
        let endpoint = json!({ "workers": [{ "answers": false, "ports": [], "qps": null }] });
        assert!(text(&endpoint).contains("does not answer"), "{}", text(&endpoint));
    }
}

//! `spraywire ports`: what could be a port here, and what an opened one can do.

pub mod drivers;

use crate::args::{EndpointArgs, OutputArgs};
use crate::endpoint::{Role, look};
use crate::error::{Error, Exit};
use crate::host::Host;
use crate::host::net::{self, Interface};
use crate::host::pci::{self, Binding, Device};
use crate::report::table::Align::{Left, Right};
use crate::report::{Document, Out, Table};
use clap::Args;
use dpdk::{Eal, Needs, PortInfo};
use serde_json::{Value, json};

const AFTER: &str = "\
Without --port: the NICs of this machine and who has them, the kernel's interfaces, and DPDK's drivers, each with the --port that \
takes it. With --port (or --eal): the ports that DPDK has then, with what each can do; they are opened, and not started.

Examples:
  spraywire ports
  spraywire ports --port net_af_packet0,iface=eth1
  spraywire ports --port 0000:01:00.0 --json
  spraywire ports --eal \"-a 0000:01:00.0 -a 0000:01:00.1\"";

/// Arguments of `ports`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct PortsArgs {
    /// The port.
    #[command(flatten)]
    pub endpoint: EndpointArgs,

    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs the command.
pub fn run(args: &PortsArgs, verbosity: u8) -> Result<Exit, Error> {
    let json = args.output.json();
    json.check()?;
    let mut out = json.text();
    let mut document = Document::new("ports", &args.endpoint);
    document.set("dpdk", &Eal::version());
    if !args.endpoint.ports.is_empty() || args.endpoint.eal.is_some() {
        let (eal, _) = look(&args.endpoint, Role::Server, verbosity)?;
        let ports = eal.require_ports().map_err(Error::usage)?;
        for port in &ports {
            show(&mut out, port)?;
        }
        document.set("ports", &ports.iter().map(port_json).collect::<Vec<_>>());
    } else {
        let host = Host::here();
        let (devices, interfaces) = (pci::devices(&host), net::interfaces(&host));
        let installed = installed(&host);
        overview(&mut out, &devices, &interfaces, &installed)?;
        document.set("pci", &devices.iter().map(device_json).collect::<Vec<_>>());
        document.set("interfaces", &interfaces);
        document.set("drivers", &installed.iter().map(Installed::json).collect::<Vec<_>>());
    }
    out.flush()?;
    document.write(&json)?;
    Ok(Exit::Ok)
}

/// A driver that is there.
struct Installed {
    name: String,
    /// What it is good for, and a `--port`, if it drives virtual devices.
    purpose: Option<(&'static str, &'static str)>,
    /// What this process lacks to use it.
    lacks: Vec<String>,
}

impl Installed {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "virtual": self.purpose.is_some(),
            "port": self.purpose.map(|(_, port)| port),
            "lacks": self.lacks,
        })
    }
}

fn installed(host: &Host) -> Vec<Installed> {
    let names = Eal::driver_dir().map(|folder| drivers::net(&folder)).unwrap_or_default();
    let caps = host.process().caps;
    let installed = |name: String| {
        let purpose = drivers::virtual_device(&name);
        let needs = Needs::of(purpose.map_or("", |(_, port)| port));
        let closed = needs.files.iter().filter(|file| !host.usable(file));
        let lacks = needs.missing(caps).into_iter().chain(closed.copied()).map(str::to_owned).collect();
        Installed { name, purpose, lacks }
    };
    names.into_iter().map(installed).collect()
}

/// What `--port` takes for a device, or what has to be done first.
fn use_of(device: &Device) -> String {
    match device.binding() {
        Binding::UserSpace | Binding::Shared => format!("--port {}", device.address),
        Binding::Kernel | Binding::Nobody => {
            format!("first: dpdk-devbind.py --bind=vfio-pci {}", device.address)
        }
    }
}

fn overview(
    out: &mut Out,
    devices: &[Device],
    interfaces: &[Interface],
    installed: &[Installed],
) -> Result<(), Error> {
    let numa = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
    let mut table = Table::new([
        ("NIC", Left),
        ("id", Left),
        ("driver", Left),
        ("interface", Left),
        ("numa", Right),
        ("use", Left),
    ]);
    for device in devices {
        let driver = device.driver.clone().unwrap_or_else(|| "-".to_owned());
        let cells = [device.address.clone(), device.id.clone(), driver, device.interfaces.join(",")];
        table.row(cells.into_iter().chain([numa(device.numa), use_of(device)]));
    }
    if !table.is_empty() {
        out.line(format_args!("{table}\n"))?;
    }
    let columns = [
        ("interface", Left),
        ("link", Left),
        ("MAC address", Left),
        ("mtu", Right),
        ("queues", Right),
        ("numa", Right),
        ("driver", Left),
        ("use", Left),
    ];
    let mut table = Table::new(columns);
    for i in interfaces.iter().filter(|i| i.ethernet) {
        let link = if i.up { "up" } else { "down" };
        let cells =
            [i.name.clone(), link.to_owned(), i.mac.clone(), i.mtu.to_string(), i.rx_queues.to_string()];
        let how = format!("--port net_af_packet0,iface={}", i.name);
        table.row(cells.into_iter().chain([numa(i.numa), i.driver.clone(), how]));
    }
    if !table.is_empty() {
        out.line(format_args!("{table}\n"))?;
    }
    let mut table = Table::new([
        ("virtual device", Left),
        ("this process lacks", Left),
        ("use", Left),
        ("what it is", Left),
    ]);
    for driver in installed {
        let Some((what, port)) = driver.purpose else { continue };
        let lacks = if driver.lacks.is_empty() { "nothing".to_owned() } else { driver.lacks.join(", ") };
        table.row([format!("net_{}", driver.name), lacks, format!("--port {port}"), what.to_owned()]);
    }
    out.line(table)?;
    let nics: Vec<&str> = installed.iter().filter(|d| d.purpose.is_none()).map(|d| d.name.as_str()).collect();
    out.line(format_args!("\n{} with drivers of NICs and others: {}", Eal::version(), nics.join(" ")))
}

fn show(out: &mut Out, port: &PortInfo) -> Result<(), Error> {
    let words = |names: Vec<String>| {
        if names.is_empty() { "none".to_owned() } else { names.join(" ").to_lowercase() }
    };
    let rss = port.rss_names();
    let mtu = if port.mtu_enforced {
        format!("{} (from {} to {})", port.mtu, port.min_mtu, port.max_mtu)
    } else {
        format!("whatever is asked for, up to {}", port.max_mtu)
    };
    let link = match port.link {
        None => "unknown".to_owned(),
        Some(link) => {
            let speed = link.speed_mbps.map_or(String::new(), |mbps| format!(", {mbps} Mbit/s"));
            format!("{}{speed}", if link.up { "up" } else { "down" })
        }
    };
    out.line(format_args!("{} ({} on {})", port.name, port.driver, port.bus))?;
    let lines = [
        ("MAC address", port.mac.to_string()),
        ("link", link),
        ("MTU", mtu),
        ("queues", format!("{} receive, {} transmit at the most", port.max_rx_queues, port.max_tx_queues)),
        ("spreads by", if rss.is_empty() { "nothing (no RSS)".to_owned() } else { rss.join(" ") }),
        ("NUMA node", port.socket.map_or("none".to_owned(), |node| node.to_string())),
        ("receive can", words(port.rx_offload_names())),
        ("transmit can", words(port.tx_offload_names())),
    ];
    for (name, value) in lines {
        out.line(format_args!("  {name:<13}{value}"))?;
    }
    Ok(())
}

fn device_json(device: &Device) -> Value {
    let mut value = json!(device);
    value["usable"] = matches!(device.binding(), Binding::UserSpace | Binding::Shared).into();
    value
}

fn port_json(port: &PortInfo) -> Value {
    json!({
        "name": port.name,
        "driver": port.driver,
        "device": port.device,
        "bus": port.bus,
        "mac": port.mac.to_string(),
        "link_up": port.link.map(|l| l.up),
        "speed_mbps": port.link.and_then(|l| l.speed_mbps),
        "mtu": port.mtu,
        "min_mtu": port.min_mtu,
        "max_mtu": port.max_mtu,
        "mtu_enforced": port.mtu_enforced,
        "max_rx_queues": port.max_rx_queues,
        "max_tx_queues": port.max_tx_queues,
        "rss": port.rss_names(),
        "numa": port.socket,
        "rx_offloads": port.rx_offload_names(),
        "tx_offloads": port.tx_offload_names(),
    })
}

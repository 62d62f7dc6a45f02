//! Which devices there are: by environment variables, or by a TOML file.
//!
//! One device: `SPRAYWIRE_PORT`, `SPRAYWIRE_IP` and so on, called like the flags of the `spraywire` command. Several: a file
//! named by `SPRAYWIRE_CONFIG` with the same words as keys, in a `[[device]]` table for each. What stands outside of the
//! tables, and the variables, hold for all of them.

use dataplane::entropy::EntropyRange;
use dataplane::open::{Role, default_port};
use dataplane::route::{self, Gateway, PortAddr};
use dataplane::spec::{self, PortSpec};
use roce_proto::types::{Mtu, PKey};
use roce_proto::wire::ethernet::{MacAddr, VlanTag};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How the variables begin.
const PREFIX: &str = "SPRAYWIRE_";
/// What can be set of a device, as keys of the file; variables are in capitals with `_` for `-`.
const KEYS: [&str; 15] = [
    "name",
    "port",
    "role",
    "ip",
    "gateway",
    "vlan",
    "mtu",
    "ib-mtu",
    "pkey",
    "entropy-range",
    "neighbour",
    "eal",
    "pcap",
    "wait",
    "poll",
];
/// Variables that are no keys; the last is the command's.
const OTHERS: [&str; 3] = ["SPRAYWIRE_CONFIG", "SPRAYWIRE_LOG", "SPRAYWIRE_RUNTIME_DIR"];
/// Keys whose values may be several: separated by commas in a variable, an array in the file.
const LISTS: [&str; 4] = ["ip", "gateway", "pkey", "neighbour"];
/// Devices at the most.
const MAX_DEVICES: usize = 32;
/// A configuration file is read whole; this is a thousand times what one needs.
const MAX_BYTES: u64 = 1 << 20;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Its name in the list of devices.
    pub name: String,
    /// Its port; none is one side of a memif pair.
    pub port: Option<PortSpec>,
    /// Which side; none finds out when the device is opened.
    pub role: Option<Role>,
    /// Its addresses, which are its GIDs; none takes those of the side.
    pub addrs: Vec<PortAddr>,
    /// Routers to what is not on the link.
    pub gateways: Vec<Gateway>,
    /// The tag of what it sends.
    pub vlan: Option<VlanTag>,
    /// MTU of the port in bytes.
    pub mtu: Option<u16>,
    /// The largest message.
    pub ib_mtu: Option<Mtu>,
    /// The P_Key table.
    pub pkeys: Vec<PKey>,
    /// The UDP source ports that it sends from.
    pub entropy: EntropyRange,
    /// Neighbours that are not asked for.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// More arguments for DPDK.
    pub eal: Vec<String>,
    /// Where to write what is sent and received.
    pub pcap: Option<PathBuf>,
    /// How long a memif client waits for its server.
    pub wait: Duration,
    /// Poll in a thread all the time, not only when the program does not.
    pub thread: bool,
}

/// The smallest MTU, as of the command's `--mtu`.
const MIN_MTU: u16 = 64;

/// The first item that has come before.
fn twice<T: PartialEq>(items: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = Vec::new();
    for item in items {
        if seen.contains(&item) {
            return Some(item);
        }
        seen.push(item);
    }
    None
}

type Values = BTreeMap<String, Vec<String>>;

impl DeviceConfig {
    /// The side that it is on, found out if it was not given, and its port.
    pub fn side(&self) -> (Role, PortSpec) {
        let role = self.role.unwrap_or_else(|| {
            let server = default_port(Role::Server);
            if self.port.is_none() && is_listening(&server) { Role::Client } else { Role::Server }
        });
        (role, self.port.clone().unwrap_or_else(|| default_port(role)))
    }

    /// What its port is told from others by, whichever side it is.
    fn selector(&self) -> String {
        let port = self.port.clone().unwrap_or_else(|| default_port(Role::Server));
        port.selector().to_owned()
    }

    /// The client's port, for who was to find out its side, found nobody, and could not become the server. Two programs that
    /// start at once both find nobody who listens; the one that is late finds the other now.
    pub fn second_thought(&self) -> Option<PortSpec> {
        self.late(is_listening(&default_port(Role::Server)))
    }

    fn late(&self, listening: bool) -> Option<PortSpec> {
        if self.role.is_some() || self.port.is_some() || !listening {
            return None;
        }
        // DPDK 22.11's driver does not give back the name of a port that it could not make.
        default_port(Role::Client).to_string().replacen("net_memif0", "net_memif9000", 1).parse().ok()
    }

    fn of(values: &Values, number: usize) -> Result<DeviceConfig, String> {
        let all = |key: &str| values.get(key).map_or(&[][..], Vec::as_slice);
        let one = |key: &str| all(key).first().map(String::as_str);
        let list = |key: &str| all(key).iter().map(String::as_str);
        let config = DeviceConfig {
            name: one("name").map_or_else(|| format!("spw{number}"), str::to_owned),
            port: one("port").map(str::parse).transpose()?,
            role: one("role").map(role).transpose()?.flatten(),
            addrs: list("ip").map(spec::addr).collect::<Result<_, _>>()?,
            gateways: list("gateway").map(spec::gateway).collect::<Result<_, _>>()?,
            vlan: one("vlan").map(spec::vlan).transpose()?,
            mtu: one("mtu").map(|text| number_of(text, "MTU")).transpose()?,
            ib_mtu: one("ib-mtu").map(ib_mtu).transpose()?,
            pkeys: match all("pkey") {
                [] => vec![PKey::DEFAULT],
                keys => keys.iter().map(|key| spec::pkey(key)).collect::<Result<_, _>>()?,
            },
            entropy: one("entropy-range").map_or(Ok(EntropyRange::DEFAULT), spec::entropy)?,
            neighbours: list("neighbour").map(spec::neighbour).collect::<Result<_, _>>()?,
            eal: list("eal").flat_map(str::split_whitespace).map(str::to_owned).collect(),
            pcap: one("pcap").map(PathBuf::from),
            wait: Duration::from_secs(
                one("wait").map_or(Ok(10), |text| number_of(text, "whole number of seconds"))?,
            ),
            thread: one("poll").map_or(Ok(false), |text| match text {
                "inline" => Ok(false),
                "thread" => Ok(true),
                other => Err(format!("`{other}` is no way to poll: write inline or thread")),
            })?,
        };
        // 63 bytes and a zero are what the structure has room for.
        if config.name.is_empty() || config.name.len() > 63 || config.name.contains(['/', '\0']) {
            return Err(format!("`{}` is no name for a device: up to 63 bytes without a slash", config.name));
        }
        if config.port.is_some() && config.addrs.is_empty() {
            return Err(format!(
                "the device {} has a port and no IP address: give it one that nobody else has, SPRAYWIRE_IP=192.0.2.1",
                config.name
            ));
        }
        route::check(&config.addrs, &config.gateways).map_err(|e| format!("{}: {e}", config.name))?;
        config.sense().map_err(|e| format!("{}: {e}", config.name))?;
        Ok(config)
    }

    /// Refuses what can be written and means nothing, or two things.
    fn sense(&self) -> Result<(), String> {
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < MIN_MTU) {
            return Err(format!("an MTU of {mtu} bytes holds no packet: give {MIN_MTU} or more"));
        }
        if let Some(ip) = twice(self.neighbours.iter().map(|(ip, _)| *ip)) {
            return Err(format!("the neighbour {ip} is given twice: which MAC address is meant?"));
        }
        if let Some(key) = twice(self.pkeys.iter().map(|key| key.0)) {
            return Err(format!("the P_Key {key:#06x} is given twice: once is enough"));
        }
        Ok(())
    }
}

/// The devices of this process.
///
/// # Errors
/// A line that says what is wrong with the configuration.
pub fn devices() -> Result<Vec<DeviceConfig>, String> {
    let vars = ours(std::env::vars_os())?;
    let file = vars.iter().find(|(name, _)| name == "SPRAYWIRE_CONFIG").map(|(_, path)| path);
    let text = match file {
        None => String::new(),
        Some(path) => read(path).map_err(|e| format!("cannot read {path}: {e}"))?,
    };
    for name in unknown(&vars) {
        let known: Vec<_> = KEYS.iter().map(|key| variable(key)).collect();
        tracing::warn!("{name} says nothing here: there are {}, {}", OTHERS.join(", "), known.join(", "));
    }
    parse(&vars, &text)
}

/// The variables that begin as ours do. What else is in the program's environment is none of our business, and need not be text.
fn ours(all: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, String> {
    let mut ours = Vec::new();
    for (name, value) in all {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let value = value.into_string().map_err(|value| format!("{name} is no text: {}", value.display()))?;
        ours.push((name.to_owned(), value));
    }
    Ok(ours)
}

/// The variable of a key.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('-', "_"))
}

/// Names among `vars` that nobody reads: slips, which would otherwise go unnoticed.
fn unknown(vars: &[(String, String)]) -> impl Iterator<Item = &str> {
    let known = |name: &str| OTHERS.contains(&name) || KEYS.iter().any(|key| variable(key) == name);
    vars.iter().map(|(name, _)| name.as_str()).filter(move |name| !known(name))
}

fn read(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    let len = std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_BYTES + 1), &mut text)?;
    if len as u64 > MAX_BYTES {
        return Err(std::io::Error::other(format!("it is longer than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

fn parse(vars: &[(String, String)], file: &str) -> Result<Vec<DeviceConfig>, String> {
    let mut table: toml::Table = file.parse().map_err(|e| format!("the configuration is no TOML: {e}"))?;
    let devices = match table.remove("device") {
        None => vec![toml::Table::new()],
        Some(toml::Value::Array(tables)) => tables
            .into_iter()
            .map(|table| match table {
                toml::Value::Table(table) => Ok(table),
                other => Err(format!("a device is a [[device]] table, not {}", other.type_str())),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(format!("devices are [[device]] tables, not {}", other.type_str())),
    };
    if devices.len() > MAX_DEVICES {
        return Err(format!("{} devices are more than {MAX_DEVICES}", devices.len()));
    }
    let mut common = Values::new();
    take(&table, &mut common)?;
    for key in KEYS {
        let name = variable(key);
        if let Some((_, value)) = vars.iter().find(|(n, v)| *n == name && !v.is_empty()) {
            let values = match LISTS.contains(&key) {
                true => value.split(',').map(|v| v.trim().to_owned()).collect(),
                false => vec![value.clone()],
            };
            common.insert(key.to_owned(), values);
        }
    }
    let mut made: Vec<DeviceConfig> = Vec::new();
    for (number, table) in devices.iter().enumerate() {
        if table.contains_key("eal") {
            return Err(
                "`eal` is of the process, not of one [[device]]: write it above the tables".to_owned()
            );
        }
        let mut values = common.clone();
        take(table, &mut values)?;
        let device = DeviceConfig::of(&values, number)?;
        for other in &made {
            if other.name == device.name {
                return Err(format!("two devices are called {}", device.name));
            }
            if let Some(path) = device.pcap.as_ref().filter(|path| other.pcap.as_ref() == Some(path)) {
                return Err(format!(
                    "{} and {} cannot both write {}: give each a file of its own",
                    other.name,
                    device.name,
                    path.display()
                ));
            }
            if other.selector() == device.selector() {
                return Err(format!(
                    "{} and {} cannot both have the port {}: give each its own",
                    other.name,
                    device.name,
                    device.selector()
                ));
            }
        }
        made.push(device);
    }
    Ok(made)
}

fn take(table: &toml::Table, into: &mut Values) -> Result<(), String> {
    let text = |value: &toml::Value| match value {
        toml::Value::String(text) => Ok(text.clone()),
        toml::Value::Integer(number) => Ok(number.to_string()),
        // None is wanted anywhere; whose value it is says so best.
        toml::Value::Float(number) => Ok(number.to_string()),
        other => Err(format!("{} is no text or number", other.type_str())),
    };
    for (key, value) in table {
        if !KEYS.contains(&key.as_str()) {
            return Err(format!("unknown key `{key}`: there are {}", KEYS.join(", ")));
        }
        let values = match value {
            toml::Value::Array(values)
                if values.len() != 1 && key != "eal" && !LISTS.contains(&key.as_str()) =>
            {
                return Err(format!("`{key}` has one value, not {}", values.len()));
            }
            toml::Value::Array(values) => values.iter().map(text).collect::<Result<_, _>>()?,
            one => vec![text(one)?],
        };
        into.insert(key.clone(), values);
    }
    Ok(())
}

fn role(text: &str) -> Result<Option<Role>, String> {
    match text {
        "server" => Ok(Some(Role::Server)),
        "client" => Ok(Some(Role::Client)),
        "auto" => Ok(None),
        other => Err(format!("`{other}` is no role: write server, client or auto")),
    }
}

fn ib_mtu(text: &str) -> Result<Mtu, String> {
    text.trim()
        .parse()
        .ok()
        .and_then(Mtu::from_bytes)
        .ok_or_else(|| format!("`{text}` is no IB MTU: write 256, 512, 1024, 2048 or 4096"))
}

fn number_of<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is no {what}"))
}

/// Whether a process listens at the abstract socket that a memif port names.
fn is_listening(port: &PortSpec) -> bool {
    let text = port.to_string();
    let Some(socket) = text.split(',').find_map(|arg| arg.strip_prefix("socket=")) else { return false };
    let name = format!(" @{socket}");
    // Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON of the kernel's <linux/net.h>.
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    table.lines().any(|line| line.ends_with(&name) && line.split_whitespace().nth(3) == Some("00010000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(n, v)| (format!("SPRAYWIRE_{n}"), (*v).to_owned())).collect()
    }

    #[test]
    fn nothing_said_is_one_side_of_a_pair() {
        let devices = parse(&[], "").unwrap();
        assert_eq!(devices.len(), 1);
        let device = &devices[0];
        assert_eq!((device.name.as_str(), &device.port, device.role), ("spw0", &None, None));
        assert_eq!(
            (device.pkeys.as_slice(), device.wait),
            ([PKey(0xffff)].as_slice(), Duration::from_secs(10))
        );
    }

    #[test]
    fn who_comes_late_becomes_the_client_if_he_may() {
        let late = |list: &[(&str, &str)], listening| parse(&vars(list), "").unwrap()[0].late(listening);
        let client = late(&[], true).unwrap().to_string();
        let first = default_port(Role::Client).to_string();
        assert!(client.contains("role=client") && client.split(',').skip(1).eq(first.split(',').skip(1)));
        assert_ne!(client.split(',').next(), first.split(',').next(), "the name is taken");
        assert_eq!(late(&[], false), None);
        assert_eq!(late(&[("ROLE", "server")], true), None);
        assert_eq!(late(&[("PORT", "net_null0"), ("IP", "10.0.0.1")], true), None);
    }

    #[test]
    fn variables_make_one_device() {
        let devices = parse(
            &vars(&[
                ("PORT", "net_af_packet0,iface=veth0"),
                ("IP", "10.0.0.1/24, fd77::1"),
                ("GATEWAY", "10.0.0.254"),
                ("NEIGHBOUR", "10.0.0.2=02:00:00:00:00:02,10.0.0.3=02:00:00:00:00:03"),
                ("PKEY", "0xffff,0x8001"),
                ("IB_MTU", "1024"),
                ("EAL", "-l 0 --no-pci"),
                ("ROLE", "client"),
                ("POLL", "thread"),
                ("ENTROPY_RANGE", "0xd000-0xd00f"),
            ]),
            "",
        );
        let device = &devices.unwrap()[0];
        assert_eq!(device.port.as_ref().unwrap().to_string(), "net_af_packet0,iface=veth0");
        assert_eq!(device.addrs.len(), 2);
        assert_eq!(device.addrs[0].prefix_len, Some(24));
        assert_eq!((device.neighbours.len(), device.gateways.len()), (2, 1));
        assert_eq!(device.pkeys, [PKey(0xffff), PKey(0x8001)]);
        assert_eq!(device.ib_mtu, Some(Mtu::B1024));
        assert_eq!(device.entropy, EntropyRange::new(0xd000, 0xd00f).unwrap());
        assert_eq!(device.eal, ["-l", "0", "--no-pci"]);
        assert_eq!((device.role, device.thread), (Some(Role::Client), true));
    }

    #[test]
    fn a_file_makes_several() {
        let file = "mtu = 1500\n[[device]]\nport = \"net_null0\"\nip = \"10.0.0.1\"\n\
                    [[device]]\nname = \"other\"\nport = \"net_null1\"\nip = [\"10.0.0.2\"]\nmtu = 2000\n";
        let devices = parse(&vars(&[("WAIT", "1")]), file).unwrap();
        let names: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.mtu, d.wait.as_secs())).collect();
        assert_eq!(names, [("spw0", Some(1500), 1), ("other", Some(2000), 1)]);
    }

    #[test]
    fn the_rest_of_the_environment_may_be_anything() {
        use std::os::unix::ffi::OsStringExt;
        let var = |name: &[u8], value: &[u8]| {
            (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()))
        };
        let others = [var(b"LS_COLORS", b"\xff"), var(b"\xfe", b"x"), var(b"SPRAYWIRE_IP", b"10.0.0.1")];
        let found = ours(others.into_iter()).unwrap();
        assert_eq!(found, [("SPRAYWIRE_IP".to_owned(), "10.0.0.1".to_owned())]);
        let error = ours([var(b"SPRAYWIRE_PCAP", b"\xff")].into_iter()).unwrap_err();
        assert!(error.contains("SPRAYWIRE_PCAP"), "{error}");
    }

    #[test]
    fn variables_that_nobody_reads_are_found() {
        let list =
            vars(&[("PROT", "x"), ("IB_MTU", "256"), ("CONFIG", "x"), ("IBMTU", "1"), ("LOG", "info")]);
        assert_eq!(unknown(&list).collect::<Vec<_>>(), ["SPRAYWIRE_PROT", "SPRAYWIRE_IBMTU"]);
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        assert!(read("/dev/zero").unwrap_err().to_string().contains("longer"));
    }

    #[test]
    fn slips_are_named() {
        for (list, file, said) in [
            (&[("PORT", "net_null0")][..], "", "SPRAYWIRE_IP"),
            (&[("IP", "10.0.0")], "", "10.0.0"),
            (&[("IB_MTU", "1000")], "", "1024"),
            (&[("ROLE", "x")], "", "server"),
            (&[("POLL", "x")], "", "inline"),
            (&[("VLAN", "4095")], "", "4094"),
            (&[("WAIT", "soon")], "", "seconds"),
            (&[("PKEY", "0")], "", "partition 0"),
            (&[("PKEY", "0x8000")], "", "partition 0"),
            (&[("PKEY", "0xffff,0x8001,0xffff")], "", "0xffff is given twice"),
            (&[("MTU", "63")], "", "64 or more"),
            (&[("MTU", "0")], "", "64 or more"),
            (&[("MTU", "70000")], "", "no MTU"),
            (&[("ENTROPY_RANGE", "5000")], "", "49152-65535"),
            (&[("ENTROPY_RANGE", "9-8")], "", "is empty"),
            (&[("ENTROPY_RANGE", "0-8")], "", "UDP port 0"),
            (&[("ENTROPY_RANGE", "4000-5000")], "", "contains 4791"),
            (
                &[("NEIGHBOUR", "10.0.0.2=02:00:00:00:00:02,10.0.0.2=02:00:00:00:00:03")],
                "",
                "10.0.0.2 is given twice",
            ),
            (&[], "[[device]]\neal = \"--no-huge\"", "above the tables"),
            (&[("PCAP", "x.pcap")], "[[device]]\n[[device]]\nname = \"b\"", "both write x.pcap"),
            (
                &[("IP", "10.0.0.1")],
                "[[device]]\nport = \"net_null0\"\n[[device]]\nport = \"net_null0,size=9\"",
                "both have the port net_null0",
            ),
            (&[], "[[device]]\n[[device]]", "both have the port net_memif0"),
            (
                &[("IP", "10.0.0.1")],
                "[[device]]\n[[device]]\nport = \"net_memif0,id=3\"",
                "both have the port net_memif0",
            ),
            (&[], "port = [\"net_null0\", \"net_null1\"]", "`port` has one value, not 2"),
            (&[], "mtu = []", "`mtu` has one value, not 0"),
            (&[], "wait = 0.5", "`0.5` is no whole number of seconds"),
            (&[], "wait = true", "boolean is no text or number"),
            (&[], "prot = 1", "unknown key `prot`"),
            (&[], "device = 1", "[[device]]"),
            (&[], "[[device]]\nname = \"a\"\n[[device]]\nname = \"a\"", "two devices"),
            (&[], "name = \"a/b\"", "a/b"),
            (&[], "=", "no TOML"),
        ] {
            let error = parse(&vars(list), file).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}

//! Metrics by HTTP, in the OpenMetrics text format.

use super::Probe;
use super::http::{Answer, Method, Serving};
use crate::error::Error;
use dataplane::counters::DropReason;
use dataplane::observe::PortSnapshot;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

/// What OpenMetrics 1.0 calls itself over HTTP.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// An address that is listened at, where nobody is answered yet.
pub struct Bound(TcpListener);

impl Bound {
    /// Binds the address. One that is not of the loopback needs `public`.
    ///
    /// # Errors
    /// A public address that was not allowed, or one that cannot be had.
    pub fn new(addr: SocketAddr, public: bool) -> Result<Bound, Error> {
        if !addr.ip().is_loopback() && !public {
            return Err(Error::usage(format_args!(
                "other machines can reach metrics at {addr}, and there is no password"
            ))
            .hint("serve them at 127.0.0.1, or say that this is meant: --metrics-public"));
        }
        let listener = TcpListener::bind(addr).map_err(|e| {
            Error::usage(format_args!("cannot serve metrics at {addr}: {e}")).hint(
                "another endpoint may be there: --metrics=127.0.0.1:PORT for each, or port 0 for a free one",
            )
        })?;
        let bound = Bound(listener);
        tracing::info!("metrics at http://{}/metrics", bound.addr().unwrap_or(addr));
        Ok(bound)
    }

    /// The address, with the port that the system chose.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// Answers until what is returned is dropped, in a thread that runs on `cores`.
    ///
    /// # Errors
    /// A system that gives no thread.
    pub fn serve(self, probe: &Arc<Probe>, cores: &[usize]) -> Result<Serving, Error> {
        let probe = probe.clone();
        Serving::start(self.0, cores, move |method, path| page(method, path, &probe))
            .map_err(|e| Error::failed(format_args!("cannot serve metrics: {e}")))
    }
}

fn page(method: Method, path: &str, probe: &Probe) -> Answer {
    match (method, path) {
        (Method::Other, _) => Answer::line("405 Method Not Allowed", "only GET"),
        (_, "/metrics") => Answer { status: "200 OK", content_type: CONTENT_TYPE, text: text(probe) },
        _ => Answer::line("404 Not Found", "metrics are at /metrics"),
    }
}

/// Every metric at this moment.
pub fn text(probe: &Probe) -> String {
    let identity = probe.identity();
    let mut registry = Registry::with_prefix("spraywire");
    let name = identity.name.clone().unwrap_or_default();
    let info =
        vec![("version", identity.version.to_owned()), ("name", name), ("pid", identity.pid.to_string())];
    registry.register("endpoint", "The endpoint of this process", Info::new(info));
    let started = Gauge::<f64, std::sync::atomic::AtomicU64>::default();
    started.set(identity.started);
    registry.register("start_time_seconds", "When the endpoint started, in seconds since 1970", started);
    let mut families = Families::new(&mut registry);
    for (index, looked) in probe.look().into_iter().enumerate() {
        let worker = || vec![("worker", index.to_string())];
        families.gauge(WORKER_ANSWERS, &worker(), i64::from(looked.now.is_some()));
        let Some(snapshot) = looked.now else { continue };
        families.gauge(QUEUE_PAIRS, &worker(), snapshot.qp_count as i64);
        families.gauge(ADDRESS_HANDLES, &worker(), snapshot.ah_count as i64);
        for (identity, port) in looked.ports.iter().zip(&snapshot.ports) {
            let mut labels = worker();
            labels.push(("port", identity.name.clone()));
            families.port(&labels, port);
        }
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

const WORKER_ANSWERS: usize = 0;
const QUEUE_PAIRS: usize = 1;
const ADDRESS_HANDLES: usize = 2;
const LINK_UP: usize = 3;

const GAUGES: [(&str, &str); 4] = [
    ("worker_answers", "Whether the worker polls and answers: 1 or 0"),
    ("queue_pairs", "Queue pairs that there are"),
    ("address_handles", "Address handles that there are"),
    ("link_up", "Whether the port's link is up: 1 or 0"),
];

/// Metric, label that tells its kinds apart, help.
const COUNTERS: [(&str, &str); 8] = [
    ("rx_packets", "Packets that the port handed to the worker, by what became of them"),
    ("rx_dropped_packets", "Packets that the worker dropped, by reason; part of rx_packets"),
    ("bytes", "Bytes of frames without FCS, and of delivered payload, by direction"),
    ("tx_packets", "Packets that the driver took, by kind"),
    ("tx_refused", "Sends refused for the moment, by reason"),
    (
        "driver",
        "What the port's driver counted, by its own names; each worker of a port tells of the whole port",
    ),
    ("link_changes", "Times that the port's link changed, by what it became: up or down"),
    (
        "queue_packets",
        "Packets of the worker's own queue where several share a port, and those that crossed between workers",
    ),
];
const RX: usize = 0;
const DROPPED: usize = 1;
const BYTES: usize = 2;
const TX: usize = 3;
const REFUSED: usize = 4;
const DRIVER: usize = 5;
const LINK: usize = 6;
const QUEUE: usize = 7;

struct Families {
    gauges: Vec<Family<Labels, Gauge>>,
    counters: Vec<Family<Labels, Counter>>,
}

impl Families {
    fn new(registry: &mut Registry) -> Families {
        let gauges = GAUGES.map(|(name, help)| {
            let family = Family::<Labels, Gauge>::default();
            registry.register(name, help, family.clone());
            family
        });
        let counters = COUNTERS.map(|(name, help)| {
            let family = Family::<Labels, Counter>::default();
            registry.register(name, help, family.clone());
            family
        });
        Families { gauges: gauges.into(), counters: counters.into() }
    }

    fn gauge(&self, which: usize, labels: &Labels, value: i64) {
        self.gauges[which].get_or_create(labels).set(value);
    }

    fn counter(&self, which: usize, labels: &Labels, kind: (&'static str, &str), value: u64) {
        let mut labels = labels.clone();
        labels.push((kind.0, kind.1.to_owned()));
        self.counters[which].get_or_create(&labels).inc_by(value);
    }

    fn port(&mut self, labels: &Labels, port: &PortSnapshot) {
        self.gauge(LINK_UP, labels, i64::from(port.link_up));
        let c = &port.counters;
        let fates = [
            ("delivered", c.delivered),
            ("neighbour", c.neighbour),
            ("echo", c.echo),
            ("ignored", c.ignored),
            ("dropped", c.dropped_total()),
        ];
        for (fate, n) in fates {
            self.counter(RX, labels, ("fate", fate), n);
        }
        // All of them, so that a rate can be made of one that has not occurred yet.
        for reason in DropReason::all() {
            self.counter(DROPPED, labels, ("reason", reason.name()), c.dropped(reason));
        }
        for (direction, n) in [("rx", c.rx_bytes), ("tx", c.tx_bytes), ("delivered", c.delivered_bytes)] {
            self.counter(BYTES, labels, ("direction", direction), n);
        }
        for (kind, n) in [("ud", c.tx_packets), ("control", c.tx_control)] {
            self.counter(TX, labels, ("kind", kind), n);
        }
        for (reason, n) in [("busy", c.tx_busy), ("no_buffer", c.tx_no_buffer)] {
            self.counter(REFUSED, labels, ("reason", reason), n);
        }
        let d = &port.driver;
        let driver = [
            ("rx_packets", d.rx_packets),
            ("rx_bytes", d.rx_bytes),
            ("rx_missed", d.rx_missed),
            ("rx_errors", d.rx_errors),
            ("rx_no_mbuf", d.rx_no_mbuf),
            ("tx_packets", d.tx_packets),
            ("tx_bytes", d.tx_bytes),
            ("tx_errors", d.tx_errors),
        ];
        for (name, n) in driver {
            self.counter(DRIVER, labels, ("counter", name), n);
        }
        for (to, n) in [("down", c.link_lost), ("up", c.link_back)] {
            self.counter(LINK, labels, ("to", to), n);
        }
        let Some(q) = &port.queue else { return };
        let ways = [
            ("rx", q.rx),
            ("tx", q.tx),
            ("steered_in", q.steered_in),
            ("steered_out", q.steered_out),
            ("steer_full", q.steer_full),
        ];
        for (way, n) in ways {
            self.counter(QUEUE, labels, ("way", way), n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Running, port_of_numbers};
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    fn value(text: &str, line: &str) -> Option<u64> {
        text.lines().find_map(|l| l.strip_prefix(line)?.trim().parse().ok())
    }

    #[test]
    fn metrics_add_up() {
        let running = Running::start("here");
        let text = text(&running.probe);
        let port = &running.probe.look()[0].ports[0].name;
        let of = |fate: &str| {
            value(
                &text,
                &format!("spraywire_rx_packets_total{{worker=\"0\",port=\"{port}\",fate=\"{fate}\"}}"),
            )
        };
        assert_eq!((of("dropped"), of("delivered")), (Some(1), Some(0)), "{text}");
        let drops = text.lines().filter(|l| l.starts_with("spraywire_rx_dropped_packets_total{"));
        let drops: Vec<u64> = drops.filter_map(|l| l.rsplit(' ').next()?.parse().ok()).collect();
        assert_eq!((drops.len(), drops.iter().sum::<u64>()), (DropReason::all().count(), 1));
        assert_eq!(value(&text, "spraywire_worker_answers{worker=\"0\"}"), Some(1));
        assert_eq!(value(&text, "spraywire_queue_pairs{worker=\"0\"}"), Some(1));
        assert!(text.contains("name=\"here\""), "{text}");
        let link = |to| {
            value(&text, &format!("spraywire_link_changes_total{{worker=\"0\",port=\"{port}\",to=\"{to}\"}}"))
        };
        assert_eq!((link("down"), link("up")), (Some(0), Some(0)), "{text}");
        assert!(!text.contains("spraywire_queue_packets_total{"), "it has the port to itself: {text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    /// Each number stands where it belongs.
    #[test]
    fn each_metric_has_its_own_number() {
        let mut registry = Registry::default();
        let mut families = Families::new(&mut registry);
        let port = port_of_numbers();
        families.port(&Labels::new(), &port);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let dropped: u64 = (0..DropReason::all().count() as u64).sum();
        let expected = [
            ("rx_packets_total{fate=\"delivered\"}", 3),
            ("rx_packets_total{fate=\"neighbour\"}", 5),
            ("rx_packets_total{fate=\"echo\"}", 6),
            ("rx_packets_total{fate=\"ignored\"}", 7),
            ("rx_packets_total{fate=\"dropped\"}", dropped),
            ("bytes_total{direction=\"rx\"}", 2),
            ("bytes_total{direction=\"tx\"}", 9),
            ("bytes_total{direction=\"delivered\"}", 4),
            ("tx_packets_total{kind=\"ud\"}", 8),
            ("tx_packets_total{kind=\"control\"}", 10),
            ("tx_refused_total{reason=\"busy\"}", 11),
            ("tx_refused_total{reason=\"no_buffer\"}", 12),
            ("link_changes_total{to=\"down\"}", 13),
            ("link_changes_total{to=\"up\"}", 14),
            ("driver_total{counter=\"rx_packets\"}", 31),
            ("driver_total{counter=\"rx_bytes\"}", 32),
            ("driver_total{counter=\"rx_missed\"}", 33),
            ("driver_total{counter=\"rx_errors\"}", 34),
            ("driver_total{counter=\"rx_no_mbuf\"}", 35),
            ("driver_total{counter=\"tx_packets\"}", 36),
            ("driver_total{counter=\"tx_bytes\"}", 37),
            ("driver_total{counter=\"tx_errors\"}", 38),
            ("queue_packets_total{way=\"rx\"}", 41),
            ("queue_packets_total{way=\"tx\"}", 42),
            ("queue_packets_total{way=\"steered_in\"}", 43),
            ("queue_packets_total{way=\"steered_out\"}", 44),
            ("queue_packets_total{way=\"steer_full\"}", 45),
            ("link_up{}", 1),
        ];
        for (line, number) in expected {
            assert_eq!(value(&text, line), Some(number), "{line}: {text}");
        }
        for (reason, n) in DropReason::all().zip(0..) {
            let line = format!("rx_dropped_packets_total{{reason=\"{}\"}}", reason.name());
            assert_eq!(value(&text, &line), Some(n), "{line}");
        }
        families.port(&Labels::new(), &PortSnapshot { link_up: false, ..port });
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert_eq!(value(&text, "link_up{}"), Some(0));
    }

    fn get(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn they_are_served_until_the_end() {
        let mut running = Running::start("x");
        let bound = Bound::new("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let addr = bound.addr().unwrap();
        let serving = bound.serve(&running.probe, &[]).unwrap();
        let answer = get(addr, "GET /metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("application/openmetrics-text; version=1.0.0"), "{answer}");
        assert!(answer.contains("spraywire_link_up"), "{answer}");
        assert!(get(addr, "GET /").starts_with("HTTP/1.1 404"));
        assert!(get(addr, "POST /metrics").starts_with("HTTP/1.1 405"));
        running.end();
        let answer = get(addr, "GET /metrics");
        assert!(
            answer.contains("spraywire_worker_answers{worker=\"0\"} 0"),
            "a dead poll loop shows: {answer}"
        );
        drop(serving);
        assert!(TcpStream::connect(addr).is_err(), "it still listens");
    }

    #[test]
    fn the_world_is_kept_out_unless_it_is_invited() {
        let error = Bound::new("0.0.0.0:0".parse().unwrap(), false).err().unwrap();
        assert!(error.to_string().contains("--metrics-public"), "{error}");
        let first = Bound::new("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let error = Bound::new(first.addr().unwrap(), false).err().unwrap();
        assert!(error.to_string().contains("cannot serve metrics at 127.0.0.1"), "{error}");
    }
}

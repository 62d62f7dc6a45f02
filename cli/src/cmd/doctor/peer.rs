//! The way to another host, looked at by sending there.

use super::opened::{of_port, refused};
use super::{DoctorArgs, Finding};
use crate::cmd::measure::{resolve, seed};
use crate::endpoint::{Endpoint, OpenConfig, Role};
use crate::error::Error;
use crate::rendezvous::message::Message;
use crate::rendezvous::{CONTROL_QPN, Control, Peer};
use crate::signal::{self, Stop};
use crate::traffic::drive::{Drive, Inline};
use dataplane::ah::AhKey;
use dataplane::clock::Clock;
use dataplane::io::PortIo;
use dataplane::worker::WorkerConfig;
use roce_proto::types::{Mtu, Qpn};
use roce_proto::wire::ud::overhead;
use std::net::IpAddr;
use std::time::Duration;

/// For the link to come up, and for the neighbour to answer: three questions a second apart, and a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// For an answer; a loaded host on the other side of a country takes less.
const ANSWER: Duration = Duration::from_millis(300);
/// The least to wait once it is known how long an answer takes: a scheduler's worst on either side.
const LEAST: Duration = Duration::from_millis(50);
/// A packet may be lost for once.
const TRIES: u16 = 3;
/// Bytes of a packet that passes everywhere: what `ping` sends.
const SMALL: usize = 84;
/// Bytes around a payload at the most.
const OVERHEAD: usize = overhead(true, true);

/// What was seen of the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// It, or the router to it, told a MAC address.
    resolved: bool,
    /// The MTU of the port here.
    mtu: usize,
    /// The IB MTU that is to work from here.
    ib_mtu: usize,
    /// The IB MTU that a server there has.
    theirs: Option<usize>,
    /// The largest packet that got there and back; none if not even a small one did.
    passes: Option<usize>,
}

/// Opens the port and looks.
///
/// # Errors
/// A host that cannot be one, and an interruption. Everything else is a finding.
pub(super) fn check(args: &DoctorArgs, host: &str, verbosity: u8) -> Result<Vec<Finding>, Error> {
    let ip = resolve(host, false)?;
    let stop = signal::install()?;
    let config = OpenConfig {
        ib_mtu: args.ib_mtu,
        link_wait: Some(PATIENCE),
        peer_wait: PATIENCE,
        measures: false,
        ..OpenConfig::new(Role::Client, verbosity)
    };
    let endpoint = match Endpoint::open(&args.endpoint, &config, &stop) {
        Ok(endpoint) => endpoint,
        Err(e) => return Ok(vec![refused(&e)]),
    };
    let idle = endpoint.idle();
    let (mut worker, environment) =
        match endpoint.into_worker(&WorkerConfig { seed: seed(), ..WorkerConfig::default() }) {
            Ok(made) => made,
            Err(e) => return Ok(vec![refused(&e)]),
        };
    let name = worker.port_info(0).map(|info| info.name.clone()).unwrap_or_default();
    let port = environment.eal.find(&name).and_then(|id| environment.eal.port(id));
    let mut findings = port.map_or_else(|_| Vec::new(), |info| of_port(&info, args.endpoint.mtu));
    let cqs = [worker.create_cq(1), worker.create_cq(256)];
    let drive = Inline::new(worker, cqs, Clock::new(), idle);
    let seen = Looking::new(drive, cqs[1], ip, &stop).and_then(|mut looking| looking.look(args.ib_mtu));
    environment.close();
    findings.extend(match seen {
        Ok(seen) => judge(ip, seen),
        Err(e) if stop.requested() => return Err(e),
        Err(e) => vec![refused(&e)],
    });
    Ok(findings)
}

/// Somebody who sends and waits.
struct Looking<'a, I: PortIo + 'static> {
    drive: Inline<I>,
    control: Control,
    ip: IpAddr,
    stop: &'a Stop,
    sequence: u16,
    /// How long to wait for an answer: ten times what the last one took.
    patience: Duration,
}

impl<'a, I: PortIo + 'static> Looking<'a, I> {
    fn new(
        mut drive: Inline<I>,
        cq: dataplane::qp::CqKey,
        ip: IpAddr,
        stop: &'a Stop,
    ) -> Result<Looking<'a, I>, Error> {
        let control = Control::open(&mut drive, cq, None)?;
        Ok(Looking { drive, control, ip, stop, sequence: 0, patience: ANSWER })
    }

    /// Makes rounds until `done` has an answer; none if it has none within `limit`.
    fn wait<T>(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let start = self.drive.now();
        loop {
            self.control.pump(&mut self.drive)?;
            self.drive.turn(false);
            while let Some(completion) = self.drive.complete() {
                self.control.take_own(&mut self.drive, completion);
            }
            if let Some(answer) = done(self)? {
                return Ok(Some(answer));
            }
            if self.stop.requested() {
                return Err(Error::interrupted());
            }
            if self.drive.now().saturating_since(start) >= limit {
                return Ok(None);
            }
        }
    }

    fn look(&mut self, ib_mtu: Option<Mtu>) -> Result<Seen, Error> {
        let numbers = |w: &mut dataplane::worker::Worker<I, _>| {
            (w.port_info(0).map_or(0, |info| usize::from(info.mtu)), w.ib_mtu(0))
        };
        let (mtu, fits) = self.drive.with_worker(numbers).map_err(Error::failed)?;
        let mut seen = Seen {
            resolved: false,
            mtu,
            ib_mtu: ib_mtu.map_or(fits, Mtu::bytes),
            theirs: None,
            passes: None,
        };
        let ip = self.ip;
        let ready = self.wait(PATIENCE, |me| {
            let (ah, ready) = me.control.route(&mut me.drive, ip)?;
            Ok(ready.then_some(ah))
        })?;
        let Some(ah) = ready else { return Ok(seen) };
        seen.resolved = true;
        seen.theirs = self.ask()?;
        if self.passes(ah, SMALL)? {
            seen.passes = Some(self.largest(ah, mtu)?);
        }
        Ok(seen)
    }

    /// The IB MTU of whoever serves there.
    fn ask(&mut self) -> Result<Option<usize>, Error> {
        let server = Peer { ip: self.ip, qpn: Qpn::new(CONTROL_QPN).unwrap_or_default() };
        let id = seed();
        for _ in 0..TRIES {
            self.control.send(&mut self.drive, server, &Message::Probe { id })?;
            let about = self.wait(ANSWER, |me| {
                Ok(match me.control.next_message() {
                    Some((_, Message::About { id: of, mtu, .. })) if of == id => Some(mtu as usize),
                    _ => None,
                })
            })?;
            if about.is_some() {
                return Ok(about);
            }
        }
        Ok(None)
    }

    /// Whether a packet of `len` bytes gets there and comes back whole.
    fn passes(&mut self, ah: AhKey, len: usize) -> Result<bool, Error> {
        let ident = std::process::id() as u16;
        for _ in 0..TRIES {
            self.sequence = self.sequence.wrapping_add(1);
            let (sequence, ip) = (self.sequence, self.ip);
            let sent = self.drive.with_worker(move |w| w.send_echo(ah, ident, sequence, len));
            let asked = self.drive.now();
            // A port that is busy counts as a loss.
            let _ = sent.map_err(Error::failed)?;
            let answer = self.wait(self.patience, |me| {
                let reply = me.drive.with_worker(|w| w.echo_reply(0)).map_err(Error::failed)?;
                Ok(reply.filter(|reply| (reply.from, reply.sequence, reply.len) == (ip, sequence, len)))
            })?;
            if answer.is_some() {
                let took = self.drive.now().saturating_since(asked);
                self.patience = (took * 10).clamp(LEAST, ANSWER);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The largest packet that passes, where a small one does.
    fn largest(&mut self, ah: AhKey, mtu: usize) -> Result<usize, Error> {
        if self.passes(ah, mtu)? {
            return Ok(mtu);
        }
        let (mut good, mut bad) = (SMALL, mtu);
        while good + 1 < bad {
            let middle = good + (bad - good) / 2;
            if self.passes(ah, middle)? { good = middle } else { bad = middle }
        }
        Ok(good)
    }
}

/// What that means.
fn judge(ip: IpAddr, seen: Seen) -> Vec<Finding> {
    let Seen { resolved, mtu, ib_mtu, theirs, passes } = seen;
    if !resolved {
        return vec![Finding::problem(
            "peer",
            format!("nobody tells the MAC address of {ip}, or of the router there"),
            "is it up, on the same network (or VLAN: --vlan), and does --ip have the right prefix, or --gateway the router?",
        )];
    }
    let mut findings = vec![match theirs {
        Some(theirs) if theirs == ib_mtu => {
            Finding::ok("peer", format!("{ip} answers; both sides have an IB MTU of {ib_mtu}"))
        }
        Some(theirs) => Finding::warning(
            "peer",
            format!(
                "{ip} has an IB MTU of {theirs}, here it is {ib_mtu}: larger messages than {} do not arrive",
                theirs.min(ib_mtu)
            ),
            format!(
                "on the side that has less: --mtu {} or more, and that much at its interface; or --ib-mtu {} on the other",
                theirs.max(ib_mtu) + OVERHEAD,
                theirs.min(ib_mtu)
            ),
        ),
        None => Finding::note(
            "peer",
            format!("{ip} is there, but no spraywire server that tells its IB MTU"),
            format!("start spraywire bw --ip {ip} there to compare both sides"),
        ),
    }];
    findings.push(match passes {
        Some(passes) if passes >= mtu => {
            Finding::ok("path", format!("packets of {mtu} bytes, the MTU here, get to {ip} and back"))
        }
        Some(passes) => too_small(ip, passes, mtu, ib_mtu),
        None => Finding::note(
            "path",
            format!("{ip} answers no echo requests, so it is not known how large a packet may be"),
            "allow ICMP echo there, or start spraywire bw on a port of its own",
        ),
    });
    findings
}

fn too_small(ip: IpAddr, passes: usize, mtu: usize, ib_mtu: usize) -> Finding {
    let raise = format!("an MTU of {mtu} on every interface and switch up to {ip}, and there");
    let need = ib_mtu + OVERHEAD;
    let found = format!(
        "packets of up to {passes} bytes get to {ip} and back, larger ones are lost: the MTU here is {mtu}"
    );
    if passes >= need {
        let mend = format!("{raise}; an IB MTU of {ib_mtu}, which needs {need}, works as it is");
        return Finding::warning("path", found, mend);
    }
    let found = format!("{found}, and an IB MTU of {ib_mtu} needs {need}");
    let mend = match Mtu::fitting(passes, OVERHEAD) {
        Some(fits) => format!("{raise}; or here --mtu {passes}, for an IB MTU of {}", fits.bytes()),
        None => raise,
    };
    Finding::problem("path", found, mend)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::tests::only;
    use super::*;

    const SEEN: Seen =
        Seen { resolved: true, mtu: 4200, ib_mtu: 4096, theirs: Some(4096), passes: Some(4200) };

    fn judged(seen: Seen) -> Vec<Finding> {
        let findings = judge("192.0.2.9".parse().unwrap(), seen);
        for finding in &findings {
            assert_eq!(finding.mend.is_none(), finding.level == Level::Ok, "{finding:?}");
        }
        findings
    }

    fn levels(seen: Seen) -> [Level; 2] {
        let findings = judged(seen);
        ["peer", "path"].map(|check| only(&findings, check).level)
    }

    #[test]
    fn equal_sides_and_a_wide_path_are_well() {
        assert_eq!(levels(SEEN), [Level::Ok, Level::Ok]);
    }

    #[test]
    fn what_differs_is_told_with_numbers() {
        let findings = judged(Seen { theirs: Some(1024), ..SEEN });
        let peer = only(&findings, "peer");
        assert_eq!(peer.level, Level::Warning);
        assert!(peer.found.contains("IB MTU of 1024, here it is 4096"), "{peer:?}");
        assert!(peer.mend.as_ref().unwrap().contains("--mtu 4172 or more"), "{peer:?}");
        assert!(peer.mend.as_ref().unwrap().contains("--ib-mtu 1024 on the other"), "{peer:?}");
    }

    #[test]
    fn a_narrow_path_is_a_problem_if_messages_do_not_pass() {
        assert_eq!(levels(Seen { passes: Some(4172), ..SEEN })[1], Level::Warning, "4096 + 76 bytes");
        let findings = judged(Seen { passes: Some(4171), ..SEEN });
        let path = only(&findings, "path");
        assert_eq!(path.level, Level::Problem);
        assert!(path.mend.as_ref().unwrap().contains("--mtu 4171, for an IB MTU of 2048"), "{path:?}");
        assert_eq!(levels(Seen { passes: Some(200), ib_mtu: 256, ..SEEN })[1], Level::Problem);
    }

    #[test]
    fn silence_is_no_problem_of_the_path() {
        assert_eq!(levels(Seen { theirs: None, passes: None, ..SEEN }), [Level::Note, Level::Note]);
        let findings = judged(Seen { resolved: false, theirs: None, passes: None, ..SEEN });
        assert_eq!((findings.len(), only(&findings, "peer").level), (1, Level::Problem));
    }
}

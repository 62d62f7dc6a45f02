//! Sending frames as they are.

use pnet_datalink::{Channel, Config, DataLinkSender};
use std::io;
use std::time::{Duration, Instant};

/// A network interface to send frames from.
pub struct Wire {
    sender: Box<dyn DataLinkSender>,
}

impl Wire {
    /// Opens an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// There is none of that name, it is down, or the process may not (`CAP_NET_RAW`).
    pub fn open(name: &str) -> io::Result<Wire> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}"));
        let interface =
            pnet_datalink::interfaces().into_iter().find(|i| i.name == name).ok_or_else(missing)?;
        let config = Config { promiscuous: false, ..Config::default() };
        match pnet_datalink::channel(&interface, config)? {
            Channel::Ethernet(sender, _) => Ok(Wire { sender }),
            _ => Err(io::Error::other(format!("{name} is no Ethernet interface"))),
        }
    }

    /// Sends a frame; false if the interface has no room for it now.
    ///
    /// # Errors
    /// The interface does not take it: shorter than an Ethernet header, longer than its MTU allows, or it is gone.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        let full = Some(rustix::io::Errno::NOBUFS.raw_os_error());
        match self.sender.send_to(frame, None) {
            Some(Ok(())) => Ok(true),
            Some(Err(e)) if e.raw_os_error() == full || e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Some(Err(e)) => Err(e),
            None => Ok(false),
        }
    }
}

/// Frames that an interface hands over or sends, until `wanted` has had enough of them or the time is over.
///
/// # Errors
/// As [`Wire::open`].
pub fn listen(name: &str, limit: Duration, mut wanted: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no interface {name}"));
    let interface = pnet_datalink::interfaces().into_iter().find(|i| i.name == name).ok_or_else(missing)?;
    let config = Config { read_timeout: Some(Duration::from_millis(100)), ..Config::default() };
    let Channel::Ethernet(_, mut receiver) = pnet_datalink::channel(&interface, config)? else {
        return Err(io::Error::other(format!("{name} is no Ethernet interface")));
    };
    let start = Instant::now();
    while start.elapsed() < limit {
        match receiver.next() {
            Ok(frame) if !wanted(frame) => break,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Keeps a rate, in steps of a millisecond.
pub struct Pace {
    start: Instant,
    per_second: Option<f64>,
    taken: u64,
}

impl Pace {
    /// So many a second; `None` for no limit.
    pub fn new(per_second: Option<f64>) -> Pace {
        Pace { start: Instant::now(), per_second, taken: 0 }
    }

    /// Waits until one more is due. What was missed is made up for.
    pub fn wait(&mut self) {
        self.taken += 1;
        let Some(rate) = self.per_second else { return };
        let due = Duration::from_secs_f64(self.taken as f64 / rate);
        let early = due.saturating_sub(self.start.elapsed());
        if early >= Duration::from_millis(1) {
            std::thread::sleep(early);
        }
    }
}

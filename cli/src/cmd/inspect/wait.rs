//! Reading what may never come: a signal ends the wait.

use crate::signal::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;

/// Between two looks for a signal. After one, who writes has so long to bring what it still holds, again and again.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A source that is waited for, and ends when a signal came and nothing more does.
pub(super) struct Patient<S> {
    source: S,
    stop: Stop,
}

impl<S: Read + AsFd> Patient<S> {
    pub fn new(source: S, stop: &Stop) -> Patient<S> {
        Patient { source, stop: stop.clone() }
    }
}

impl<S: Read + AsFd> Read for Patient<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let asked = self.stop.requested();
            let mut fds = [PollFd::new(&self.source, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(0) if asked => return Ok(0),
                // A signal may have ended the wait: the next is the last.
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(e.into()),
            }
            match self.source.read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                read => return read,
            }
        }
    }
}

/// Opens a file so that neither this nor reading it waits: a FIFO may have no writer yet.
pub(super) fn open(path: &std::path::Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

//! `--pcap`: what an endpoint sent and received, written by the process itself.
//!
//! Works with any port and without a secondary DPDK process. Frames carry the host's clock and no FCS; the link type is
//! Ethernet. Meant for looking, not for full rate: each frame costs a copy into a write buffer.

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes kept of a frame at the most: all of it, for any frame that a port can carry.
const SNAPLEN: u32 = 65_535;

/// A pcap file being written. Clones write to the same file; the last one's drop completes it.
#[derive(Clone)]
pub struct Capture {
    // A lock is taken only where a capture was asked for; nobody measures through one.
    writer: Arc<Mutex<PcapWriter<Sink>>>,
    sink: Sink,
}

/// The file below the pcap writer, which has no flush of its own.
#[derive(Clone)]
struct Sink(Arc<Mutex<BufWriter<File>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().map_err(|_| poisoned())?.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().map_err(|_| poisoned())?.flush()
    }
}

fn poisoned() -> std::io::Error {
    std::io::Error::other("a thread that wrote the capture panicked")
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Capture")
    }
}

impl Capture {
    /// Creates (or empties) the file and writes its header.
    pub fn create(path: &Path) -> std::io::Result<Capture> {
        let header = PcapHeader { snaplen: SNAPLEN, datalink: DataLink::ETHERNET, ..PcapHeader::default() };
        let sink = Sink(Arc::new(Mutex::new(BufWriter::with_capacity(1 << 18, File::create(path)?))));
        let writer = PcapWriter::with_header(sink.clone(), header).map_err(std::io::Error::other)?;
        Ok(Capture { writer: Arc::new(Mutex::new(writer)), sink })
    }

    /// Hands everything written so far to the system.
    pub fn flush(&self) -> std::io::Result<()> {
        self.sink.clone().flush()
    }

    /// Writes one frame. A frame that cannot be written is lost from the file and said so in the log, once.
    pub fn frame(&self, frame: &[u8]) {
        let when = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kept = &frame[..frame.len().min(SNAPLEN as usize)];
        let packet = PcapPacket { timestamp: when, orig_len: frame.len() as u32, data: Cow::Borrowed(kept) };
        let Ok(mut writer) = self.writer.lock() else { return };
        if let Err(e) = writer.write_packet(&packet) {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| tracing::error!("capture: frames are missing from the file: {e}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::PcapReader;

    #[test]
    fn frames_come_back_whole_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        let capture = Capture::create(&path).unwrap();
        let frames = [vec![1u8; 60], vec![2u8; 9018], vec![]];
        for frame in &frames {
            capture.frame(frame);
        }
        capture.flush().unwrap();
        let mut reader = PcapReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        for want in &frames {
            let got = reader.next_packet().unwrap().unwrap();
            assert_eq!(got.data.as_ref(), want.as_slice());
            assert_eq!(got.orig_len as usize, want.len());
        }
        assert!(reader.next_packet().is_none());
    }

    #[test]
    fn a_path_that_cannot_be_written_is_an_error() {
        assert!(Capture::create(Path::new("/proc/none/x.pcap")).is_err());
    }
}

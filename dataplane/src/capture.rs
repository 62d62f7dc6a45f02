//! `--pcap`: what an endpoint sent and received, written by the process itself.
//!
//! Works with any port and without a secondary DPDK process. Frames carry the host's clock and no FCS; the link type is
//! Ethernet. Meant for looking, not for full rate: each frame costs a copy into a write buffer.

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
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

/// The file below the pcap writer, which has no flush of its own and does not tell why a write failed.
#[derive(Clone)]
struct Sink(Arc<Mutex<Target>>);

struct Target {
    file: BufWriter<File>,
    /// The first failure. Nothing is written after it: a record of which a part is missing would spoil all that follow.
    failure: Option<(ErrorKind, String)>,
}

impl Target {
    fn attempt<T>(
        &mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        if let Some((kind, text)) = &self.failure {
            return Err(std::io::Error::new(*kind, text.clone()));
        }
        write(&mut self.file).inspect_err(|e| {
            self.failure.get_or_insert_with(|| (e.kind(), e.to_string()));
        })
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().map_err(|_| poisoned())?.attempt(|file| file.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().map_err(|_| poisoned())?.attempt(BufWriter::flush)
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
        let file = BufWriter::with_capacity(1 << 18, File::create(path)?);
        let sink = Sink(Arc::new(Mutex::new(Target { file, failure: None })));
        let writer = PcapWriter::with_header(sink.clone(), header).map_err(std::io::Error::other)?;
        Ok(Capture { writer: Arc::new(Mutex::new(writer)), sink })
    }

    /// Hands everything written so far to the system.
    ///
    /// # Errors
    /// The first failure to write since the file was made: frames are missing then.
    pub fn flush(&self) -> std::io::Result<()> {
        self.sink.clone().flush()
    }

    /// Writes one frame. One that cannot be written is lost from the file, and so are those after it; the log says so, once, and
    /// [`Capture::flush`] from then on.
    pub fn frame(&self, frame: &[u8]) {
        let when = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kept = &frame[..frame.len().min(SNAPLEN as usize)];
        let packet = PcapPacket { timestamp: when, orig_len: frame.len() as u32, data: Cow::Borrowed(kept) };
        let Ok(mut writer) = self.writer.lock() else { return };
        if writer.write_packet(&packet).is_err() {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| match self.flush() {
                Err(e) => tracing::error!("capture: from here on, frames are missing from the file: {e}"),
                Ok(()) => tracing::error!("capture: a frame is missing from the file"),
            });
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
    fn a_full_disk_is_told_in_the_end_however_little_was_written() {
        for frames in [1, 1000] {
            let capture = Capture::create(Path::new("/dev/full")).unwrap();
            for _ in 0..frames {
                capture.frame(&[0; 1000]);
            }
            for _ in 0..2 {
                assert_eq!(capture.flush().unwrap_err().kind(), ErrorKind::StorageFull, "{frames}");
            }
        }
    }

    #[test]
    fn a_path_that_cannot_be_written_is_an_error() {
        assert!(Capture::create(Path::new("/proc/none/x.pcap")).is_err());
    }
}

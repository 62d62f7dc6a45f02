//! Capture files, pcap and pcapng, read record by record and with distrust.
//!
//! A reader of our own, because what `inspect` is given is often cut short, of unknown origin or still being written: a
//! record that was cut by the snap length is normal, lengths are checked before memory is taken, and a file that breaks
//! off still yields all its whole records. Formats: the IETF's drafts `draft-ietf-opsawg-pcap` and
//! `draft-ietf-opsawg-pcapng`.

mod linktype;
mod pcap;
mod pcapng;

pub use linktype::LinkType;

use std::fmt;
use std::io::{self, BufReader, Read};

/// The most bytes that one record may have captured: libpcap's own bound for a snap length.
pub const MAX_CAPTURED: u32 = 262_144;
/// The longest pcapng block that is kept in memory: a record of the largest size with options around it. Longer ones of
/// kinds that do not matter here are skipped without being kept.
const MAX_BLOCK: u32 = MAX_CAPTURED + (1 << 20);
/// Interfaces of one pcapng section at the most.
const MAX_INTERFACES: usize = 65_536;

/// The kind of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pcap with microseconds or nanoseconds.
    Pcap,
    /// pcapng.
    Pcapng,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Pcap => "pcap",
            Format::Pcapng => "pcapng",
        })
    }
}

/// One captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, in nanoseconds since 1970 UTC; `None` where the file does not say.
    pub time: Option<u64>,
    /// What `data` begins with.
    pub link: LinkType,
    /// Bytes that the packet had on the wire.
    pub orig_len: u32,
    /// Those that were captured.
    pub data: &'a [u8],
}

impl Record<'_> {
    /// Whether the capture has less than the wire had.
    pub fn is_cut(&self) -> bool {
        (self.data.len() as u64) < u64::from(self.orig_len)
    }
}

/// Why a file could not be read, or not to its end.
#[derive(Debug)]
pub enum CaptureError {
    /// The system refused.
    Io(io::Error),
    /// There is not a single byte.
    Empty,
    /// The file begins like no capture; these are its first bytes.
    Magic([u8; 4]),
    /// The file ends inside its header, a record or a block.
    Truncated,
    /// A pcap version other than 2.x.
    Version(u16),
    /// A record or block claims a length that it cannot have.
    Length {
        /// Bytes claimed.
        claimed: u32,
        /// The most or the least that is possible.
        bound: u32,
    },
    /// The two length fields of a pcapng block differ.
    Trailer {
        /// The one in front.
        front: u32,
        /// The one behind.
        back: u32,
    },
    /// The magic number of a pcapng section is wrong.
    SectionMagic(u32),
    /// A pcapng section of a version other than 1.x.
    SectionVersion(u16),
    /// A pcapng packet of an interface that was not described.
    Interface(u32),
    /// More pcapng interfaces than anybody has.
    TooManyInterfaces,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Io(e) => write!(f, "{e}"),
            CaptureError::Empty => f.write_str("the file is empty"),
            CaptureError::Magic([0x1f, 0x8b, ..]) => f.write_str("compressed with gzip: unpack it first"),
            CaptureError::Magic([0x28, 0xb5, 0x2f, 0xfd]) => {
                f.write_str("compressed with zstd: unpack it first")
            }
            CaptureError::Magic([a, b, c, d]) => {
                write!(f, "neither pcap nor pcapng: it begins with {a:02x} {b:02x} {c:02x} {d:02x}")
            }
            CaptureError::Truncated => f.write_str("the file breaks off in the middle of a record"),
            CaptureError::Version(v) => write!(f, "pcap version {v}; 2 is understood"),
            CaptureError::Length { claimed, bound } => {
                write!(f, "damaged: a length of {claimed} bytes where {bound} is the bound")
            }
            CaptureError::Trailer { front, back } => {
                write!(f, "damaged: a block of {front} bytes says {back} at its end")
            }
            CaptureError::SectionMagic(m) => {
                write!(f, "damaged: a pcapng section with byte-order magic {m:#010x}")
            }
            CaptureError::SectionVersion(v) => write!(f, "pcapng version {v}; 1 is understood"),
            CaptureError::Interface(n) => {
                write!(f, "damaged: a packet of interface {n}, which is not described")
            }
            CaptureError::TooManyInterfaces => {
                write!(f, "damaged: more than {MAX_INTERFACES} interfaces in one section")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

/// Reads the records of one file, front to back.
pub struct Reader<R: Read> {
    input: Input<R>,
    format: State,
    /// After an error nothing further is read: where the next record begins is no longer known.
    failed: bool,
}

enum State {
    Pcap(pcap::Pcap),
    Pcapng(pcapng::Pcapng),
}

impl<R: Read> Reader<R> {
    /// Reads the file's header.
    ///
    /// # Errors
    /// Whatever makes it no capture.
    pub fn new(from: R) -> Result<Reader<R>, CaptureError> {
        let mut input = Input { from: BufReader::with_capacity(1 << 17, from), buffer: Vec::new() };
        let mut magic = [0; 4];
        match input.up_to(&mut magic)? {
            4 => {}
            0 => return Err(CaptureError::Empty),
            _ => return Err(CaptureError::Truncated),
        }
        let format = if magic == pcapng::SECTION {
            State::Pcapng(pcapng::Pcapng::open(&mut input)?)
        } else {
            State::Pcap(pcap::Pcap::open(magic, &mut input)?)
        };
        Ok(Reader { input, format, failed: false })
    }

    /// What the file is.
    pub fn format(&self) -> Format {
        match self.format {
            State::Pcap(_) => Format::Pcap,
            State::Pcapng(_) => Format::Pcapng,
        }
    }

    /// The next record; `None` at the end, and after an error.
    ///
    /// # Errors
    /// Whatever is wrong with the record; it is the last thing that this reader returns.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        if self.failed {
            return Ok(None);
        }
        // Set beforehand and taken back on success: the record borrows the reader.
        self.failed = true;
        let record = match &mut self.format {
            State::Pcap(pcap) => pcap.next(&mut self.input)?,
            State::Pcapng(pcapng) => pcapng.next(&mut self.input)?,
        };
        self.failed = false;
        Ok(record)
    }
}

/// The byte source and the one record in memory.
struct Input<R> {
    from: BufReader<R>,
    buffer: Vec<u8>,
}

impl<R: Read> Input<R> {
    /// Fills `out` as far as there are bytes; how many there were.
    fn up_to(&mut self, out: &mut [u8]) -> Result<usize, CaptureError> {
        let mut have = 0;
        while have < out.len() {
            match self.from.read(&mut out[have..]) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(CaptureError::Io(e)),
            }
        }
        Ok(have)
    }

    /// `N` bytes, or an error.
    fn exactly<const N: usize>(&mut self) -> Result<[u8; N], CaptureError> {
        let mut out = [0; N];
        if self.up_to(&mut out)? < N { Err(CaptureError::Truncated) } else { Ok(out) }
    }

    /// `N` bytes, or `None` if the file ends before the first of them.
    fn maybe<const N: usize>(&mut self) -> Result<Option<[u8; N]>, CaptureError> {
        let mut out = [0; N];
        match self.up_to(&mut out)? {
            0 => Ok(None),
            n if n < N => Err(CaptureError::Truncated),
            _ => Ok(Some(out)),
        }
    }

    /// Reads `len` bytes into the buffer. Memory is taken as bytes come, not as a length claims.
    fn fill(&mut self, len: u32) -> Result<(), CaptureError> {
        self.buffer.clear();
        let read = self
            .from
            .by_ref()
            .take(u64::from(len))
            .read_to_end(&mut self.buffer)
            .map_err(CaptureError::Io)?;
        if read < len as usize { Err(CaptureError::Truncated) } else { Ok(()) }
    }

    /// Passes over `len` bytes without keeping them.
    fn skip(&mut self, len: u32) -> Result<(), CaptureError> {
        let mut part = self.from.by_ref().take(u64::from(len));
        let skipped = io::copy(&mut part, &mut io::sink()).map_err(CaptureError::Io)?;
        if skipped < u64::from(len) { Err(CaptureError::Truncated) } else { Ok(()) }
    }
}

/// The byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, b: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(b),
            Order::Big => u16::from_be_bytes(b),
        }
    }

    fn u32(self, b: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(b),
            Order::Big => u32::from_be_bytes(b),
        }
    }

    fn u64(self, b: [u8; 8]) -> u64 {
        match self {
            Order::Little => u64::from_le_bytes(b),
            Order::Big => u64::from_be_bytes(b),
        }
    }
}

#[cfg(test)]
mod tests;

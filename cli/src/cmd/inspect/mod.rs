//! `spraywire inspect`: decodes the RoCEv2 packets of captures and says of each whether its ICRC is right.

mod json;
mod judge;
mod line;
mod summary;
mod wait;

use crate::args::OutputArgs;
use crate::capture::{CaptureError, Reader, Record};
use crate::error::{Error, Exit};
use crate::report::json::{JsonTarget, Stream};
use crate::report::{Out, hexdump::Hexdump, same_file};
use crate::signal;
use clap::Args;
use judge::{Judge, Seen};
use line::Line;
use serde::Serialize;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use summary::Summary;
use wait::Patient;

const AFTER: &str = "\
Examples:
  spraywire inspect trace.pcap                 one line for each RoCEv2 packet, and a summary
  spraywire inspect --summary a.pcap b.pcapng  counts by opcode only
  spraywire inspect --bad trace.pcap           only what is wrong
  spraywire inspect --json trace.pcap | jq '.results[] | select(.icrc.status == \"bad\")'
  tcpdump -i eth0 -w - udp port 4791 | spraywire inspect -

Packets that the capture cut short cannot be checked; they are counted as cut, not as wrong. \
Exit code 1 if any ICRC is wrong or a RoCEv2 packet is malformed, 2 if a file cannot be read to its end.";

/// Arguments of `inspect`.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct InspectArgs {
    /// Captures, pcap or pcapng; - for standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Print the summary only
    #[arg(short, long, conflicts_with = "bad")]
    pub summary: bool,

    /// Print only packets that are wrong: bad ICRC, or malformed
    #[arg(short, long)]
    pub bad: bool,

    /// Print times as UTC date and time instead of seconds since the file's first packet
    #[arg(long)]
    pub utc: bool,

    /// Print the payload of each packet too
    #[arg(short = 'x', long, conflicts_with = "summary")]
    pub hex: bool,

    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What was asked for, as the report repeats it.
#[derive(Serialize)]
struct Parameters<'a> {
    files: Vec<std::borrow::Cow<'a, str>>,
    summary: bool,
    bad: bool,
}

/// What became of one file.
#[derive(Serialize)]
struct FileResult {
    file: String,
    format: Option<String>,
    packets: u64,
    /// Why it was not read to its end.
    error: Option<String>,
}

/// Runs `inspect`. With `verbose` above zero lines have more, and packets other than RoCEv2 get lines too.
pub fn run(args: &InspectArgs, verbose: u8) -> Result<Exit, Error> {
    let stop = signal::install()?;
    let target = args.output.json();
    if let JsonTarget::File(to) = &target
        && let Some(read) = args.files.iter().find(|file| same_file(file, to))
    {
        return Err(Error::usage(format_args!(
            "--json={} would overwrite the capture {}",
            to.display(),
            read.display()
        ))
        .hint("name another file for the JSON"));
    }
    let parameters = Parameters {
        files: args.files.iter().map(|f| f.to_string_lossy()).collect(),
        summary: args.summary,
        bad: args.bad,
    };
    let mut inspection = Inspection {
        args,
        verbose: verbose > 0,
        out: target.text(),
        json: Stream::begin(&target, "inspect", &parameters)?,
        summary: Summary::default(),
        judge: Judge::default(),
    };
    let mut files = Vec::with_capacity(args.files.len());
    for (index, path) in args.files.iter().enumerate() {
        if args.files.len() > 1 && !args.summary {
            inspection.out.line(format_args!("{}:", path.display()))?;
        }
        let before = inspection.summary.packets;
        let (format, ended) = inspection.file(index, path, &stop)?;
        let error = ended.err().map(|e| e.to_string());
        if let Some(error) = &error {
            // The packets before it come first on a terminal that shows both.
            inspection.out.flush()?;
            Error::usage(format_args!("{}: {error}", path.display())).print();
        }
        let packets = inspection.summary.packets - before;
        files.push(FileResult { file: path.to_string_lossy().into_owned(), format, packets, error });
    }
    inspection.end(&files, stop.requested())
}

struct Inspection<'a> {
    args: &'a InspectArgs,
    verbose: bool,
    out: Out,
    json: Stream,
    summary: Summary,
    judge: Judge,
}

/// How far one file could be read: its format if it has one, and what stopped it.
type Read1 = (Option<String>, Result<(), CaptureError>);

impl Inspection<'_> {
    /// Reads one file. The outer error is one of the output, and final; the inner is the file's own.
    fn file(&mut self, index: usize, path: &Path, stop: &signal::Stop) -> Result<Read1, Error> {
        let is_stdin = path.as_os_str() == "-";
        let source: Box<dyn Read> = if is_stdin {
            // A live capture is piped in: nobody wants to wait for a buffer to fill.
            self.out.flush_each_line();
            match std::io::stdin().as_fd().try_clone_to_owned() {
                // Without the standard library's buffer, of which the system says nothing.
                Ok(stdin) => Box::new(Patient::new(File::from(stdin), stop)),
                Err(e) => return Ok((None, Err(CaptureError::Io(e)))),
            }
        } else {
            match open(path) {
                Ok(file) => Box::new(Patient::new(file, stop)),
                Err(e) => return Ok((None, Err(e))),
            }
        };
        let mut reader = match Reader::new(source) {
            Ok(reader) => reader,
            // A signal came before the first packet did.
            Err(CaptureError::Empty | CaptureError::Truncated) if stop.requested() => {
                return Ok((None, Ok(())));
            }
            Err(e) => return Ok((None, Err(e))),
        };
        let format = Some(reader.format().to_string());
        let mut number = 0;
        let mut first_time = None;
        // A pipe ends by itself when the interrupted program in front of it does; what it still holds is wanted.
        while is_stdin || !stop.requested() {
            let record = match reader.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(CaptureError::Truncated) if stop.requested() => break,
                Err(e) => return Ok((format, Err(e))),
            };
            number += 1;
            let start = *first_time.get_or_insert(record.time.unwrap_or(0));
            self.record(index, number, start, &record)?;
        }
        Ok((format, Ok(())))
    }

    fn record(&mut self, file: usize, number: u64, start: u64, record: &Record<'_>) -> Result<(), Error> {
        let seen = self.judge.judge(record);
        self.summary.add(record, &seen);
        let shown = if self.args.bad { seen.is_wrong() } else { seen.is_roce() || self.verbose };
        if self.args.summary || !shown {
            return Ok(());
        }
        if self.json.is_on() {
            self.json.push(&json::packet(file, number, record, &seen))?;
        }
        let line = Line { number, start, utc: self.args.utc, verbose: self.verbose, record, seen: &seen };
        self.out.line(line)?;
        if let Seen::Roce(roce) = &seen
            && self.args.hex
            && !roce.payload.is_empty()
        {
            self.out.line(Hexdump(roce.payload))?;
        }
        Ok(())
    }

    fn end(mut self, files: &[FileResult], interrupted: bool) -> Result<Exit, Error> {
        let unread = files.iter().any(|f| f.error.is_some());
        if !self.args.summary && self.summary.packets > 0 {
            self.out.line("")?;
        }
        // Of files that could not be read at all there is nothing to sum up: the errors have said why.
        if self.summary.packets > 0 || !unread {
            self.out.line(&self.summary)?;
        }
        self.out.flush()?;
        let ok = !unread && !self.summary.any_wrong();
        self.json.finish(&[
            ("files", json!(files)),
            ("summary", self.summary.to_json()),
            ("interrupted", json!(interrupted)),
            ("ok", json!(ok)),
        ])?;
        Ok(match (interrupted, unread, ok) {
            (true, _, _) => Exit::Interrupted,
            (_, true, _) => Exit::Usage,
            (_, _, false) => Exit::Failed,
            _ => Exit::Ok,
        })
    }
}

/// Opens a file for reading; a folder is refused here, where the message can say so.
fn open(path: &Path) -> Result<File, CaptureError> {
    let file = wait::open(path).map_err(CaptureError::Io)?;
    match file.metadata() {
        Ok(meta) if meta.is_dir() => Err(CaptureError::Io(std::io::ErrorKind::IsADirectory.into())),
        _ => Ok(file),
    }
}

//! `spraywire report`: result files as one page of HTML, which needs nothing else.

mod chart;
mod html;
mod read;

use crate::error::{Error, Exit};
use crate::report::numbers::plural;
use crate::report::{JsonTarget, Out};
use clap::Args;
use read::Source;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const AFTER: &str = "\
FILES are what --json=FILE of bw, lat and sim wrote, and --json=FILE of spraywire-benches. The page has their tables, curves of how long messages \
took, of each class and all in one, and what was asked for. It is one file without scripts, loads nothing, and is light or dark as its reader is.

Examples:
  spraywire report bw.json -o report.html
  spraywire report with-fec.json without.json lossless.json -o fec.html
      one file each, and all of them in one picture
  spraywire report *.json > report.html";

/// The largest file that is read.
const MAX_BYTES: u64 = 64 << 20;
/// Files of a page at the most.
const MAX_FILES: usize = 64;

/// Arguments of `report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct ReportArgs {
    /// Result files
    #[arg(required = true, value_name = "FILES")]
    pub files: Vec<PathBuf>,

    /// Where the page goes; standard output if not given
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Heading of the page
    #[arg(long, value_name = "TEXT", default_value = "Spraywire results")]
    pub title: String,
}

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<Exit, Error> {
    if args.files.len() > MAX_FILES {
        return Err(Error::usage(format_args!("{} files: at most {MAX_FILES}", args.files.len())));
    }
    let sources = args.files.iter().map(|file| source(file)).collect::<Result<Vec<_>, _>>()?;
    let page = html::page(&args.title, &sources);
    let target = match &args.output {
        None => JsonTarget::Stdout,
        output => JsonTarget::from_arg(Some(output)),
    };
    target.write_text(page.trim_end())?;
    if let JsonTarget::File(path) = &target {
        let files = plural(sources.len() as u64, "file");
        Out::stderr().line(format_args!("{}: {} bytes of {files}", path.display(), page.len()))?;
    }
    Ok(Exit::Ok)
}

fn source(path: &Path) -> Result<Source, Error> {
    let name = path.display();
    let cannot = |e: std::io::Error| Error::usage(format_args!("cannot read {name}: {e}"));
    let mut text = String::new();
    let mut opened = File::open(path).map_err(cannot)?.take(MAX_BYTES + 1);
    match opened.read_to_string(&mut text) {
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => return Err(refused(path, "it is no text")),
        read => read.map_err(cannot)?,
    };
    if text.len() as u64 > MAX_BYTES {
        return Err(refused(path, format_args!("it is larger than {MAX_BYTES} bytes")));
    }
    let value = serde_json::from_str(&text).map_err(|e| refused(path, format_args!("it is no JSON: {e}")))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    read::source(&name, &value).map_err(|why| refused(path, why))
}

fn refused(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::usage(format_args!("{}: {why}", path.display()))
        .hint("result files are written by --json=FILE of bw, lat, sim and spraywire-benches")
}

#[cfg(test)]
mod tests;

//! The JSON form of every report: one schema for all commands, with a version. `cli/json.md` describes it.

use crate::error::Error;
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The schema's name and version. A new field keeps the version; any other change raises it.
pub const SCHEMA: &str = "spraywire/1";

/// Where JSON goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JsonTarget {
    /// Nowhere: it was not asked for.
    #[default]
    None,
    /// Standard output, which then has nothing else.
    Stdout,
    /// A file, beside the text on standard output.
    File(PathBuf),
}

impl JsonTarget {
    /// From `--json[=FILE]`: absent, without a value (or `-`), or with a file.
    pub fn from_arg(arg: Option<&Option<PathBuf>>) -> JsonTarget {
        match arg {
            None => JsonTarget::None,
            Some(None) => JsonTarget::Stdout,
            Some(Some(path)) if path.as_os_str() == "-" => JsonTarget::Stdout,
            Some(Some(path)) => JsonTarget::File(path.clone()),
        }
    }

    /// Whether the report can be written at all, asked before the work that it is about.
    ///
    /// # Errors
    /// A folder that no file can be made in.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            JsonTarget::File(path) if path.is_dir() => {
                Err(Error::usage(format_args!("cannot write {}: it is a folder", path.display()))
                    .hint("name a file in it"))
            }
            // A pipe's reader would take a look for the end.
            JsonTarget::File(path) if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) => Ok(()),
            // Made and thrown away: the file itself is only replaced by a whole report.
            target => Sink::open(target).map(drop),
        }
    }

    /// The same, beside a capture that goes to another file.
    ///
    /// # Errors
    /// As [`JsonTarget::check`], and one file for both.
    pub fn check_beside(&self, capture: Option<&PathBuf>) -> Result<(), Error> {
        if let (JsonTarget::File(json), Some(capture)) = (self, capture)
            && (json == capture || super::same_file(json, capture))
        {
            return Err(Error::usage(format_args!("--json and --pcap both name {}", json.display()))
                .hint("name two files"));
        }
        self.check()
    }

    /// Writes a text there that is no JSON, and a line end behind it. A file appears whole, or is as it was.
    ///
    /// # Errors
    /// A target that cannot be written.
    pub fn write_text(&self, text: &str) -> Result<(), Error> {
        let Some(mut sink) = Sink::open(self)? else { return Ok(()) };
        let wrote = sink.to.write_all(text.as_bytes());
        sink.check(wrote)?;
        sink.finish()
    }

    /// Whether JSON takes standard output.
    pub fn is_stdout(&self) -> bool {
        *self == JsonTarget::Stdout
    }

    /// Where the text for people goes beside it: standard output, or nowhere if JSON has it.
    pub fn text(&self) -> super::Out {
        if self.is_stdout() { super::Out::nowhere() } else { super::Out::stdout() }
    }
}

/// A report whose results are known at its end: built field by field, then written.
#[derive(Clone, Debug)]
pub struct Document {
    fields: Map<String, Value>,
}

impl Document {
    /// The report of `command` with what it was asked for.
    pub fn new(command: &str, parameters: &impl Serialize) -> Document {
        let mut document = Document { fields: Map::new() };
        for (name, value) in head(command, parameters) {
            document.fields.insert(name.to_owned(), value);
        }
        document
    }

    /// Sets a field. Something that JSON cannot express (a map whose keys are no text) becomes null.
    pub fn set(&mut self, name: &str, value: &impl Serialize) {
        self.fields.insert(name.to_owned(), to_value(value));
    }

    /// The report as a value.
    pub fn value(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// Writes the report, indented.
    ///
    /// # Errors
    /// A target that cannot be written.
    pub fn write(&self, target: &JsonTarget) -> Result<(), Error> {
        let mut sink = match Sink::open(target)? {
            Some(sink) => sink,
            None => return Ok(()),
        };
        let wrote = serde_json::to_writer_pretty(&mut sink.to, &self.fields).map_err(std::io::Error::from);
        sink.check(wrote)?;
        sink.finish()
    }
}

/// A report whose results are written while they come, so that a large one is never in memory as a whole.
pub struct Stream {
    sink: Option<Sink>,
    any: bool,
}

impl Stream {
    /// Begins the report of `command`; without a target it writes nothing.
    ///
    /// # Errors
    /// A target that cannot be written.
    pub fn begin(target: &JsonTarget, command: &str, parameters: &impl Serialize) -> Result<Stream, Error> {
        let mut stream = Stream { sink: Sink::open(target)?, any: false };
        stream.put("{")?;
        for (name, value) in head(command, parameters) {
            stream.put(&format!("\"{name}\":{value},\n"))?;
        }
        stream.put("\"results\":[")?;
        Ok(stream)
    }

    /// Whether anything is written at all.
    pub fn is_on(&self) -> bool {
        self.sink.is_some()
    }

    /// Adds one result.
    ///
    /// # Errors
    /// A target that cannot be written.
    pub fn push(&mut self, result: &impl Serialize) -> Result<(), Error> {
        if !self.is_on() {
            return Ok(());
        }
        let text = to_value(result).to_string();
        self.put(if self.any { ",\n" } else { "\n" })?;
        self.any = true;
        self.put(&text)
    }

    /// Ends the results and the report with the fields of `tail`.
    ///
    /// # Errors
    /// A target that cannot be written.
    pub fn finish(mut self, tail: &[(&str, Value)]) -> Result<(), Error> {
        self.put("\n]")?;
        for (name, value) in tail {
            self.put(&format!(",\n\"{name}\":{value}"))?;
        }
        self.put("}")?;
        match self.sink {
            Some(sink) => sink.finish(),
            None => Ok(()),
        }
    }

    fn put(&mut self, text: &str) -> Result<(), Error> {
        match &mut self.sink {
            Some(sink) => {
                let wrote = sink.to.write_all(text.as_bytes());
                sink.check(wrote)
            }
            None => Ok(()),
        }
    }
}

/// A value as JSON; null for what JSON cannot express.
fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// What every report begins with.
fn head(command: &str, parameters: &impl Serialize) -> [(&'static str, Value); 4] {
    [
        ("schema", SCHEMA.into()),
        ("command", command.into()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("parameters", to_value(parameters)),
    ]
}

/// An open target. A file is written under another name and renamed when it is whole, so that a reader never sees a part.
struct Sink {
    to: BufWriter<Box<dyn Write>>,
    file: Option<(tempfile::TempPath, PathBuf)>,
}

impl Sink {
    fn open(target: &JsonTarget) -> Result<Option<Sink>, Error> {
        match target {
            JsonTarget::None => Ok(None),
            JsonTarget::Stdout => Ok(Some(Sink {
                to: BufWriter::with_capacity(1 << 16, Box::new(std::io::stdout())),
                file: None,
            })),
            JsonTarget::File(path) => Sink::file(path).map(Some).map_err(|e| cannot_write(path, &e)),
        }
    }

    fn file(path: &Path) -> std::io::Result<Sink> {
        // Devices and pipes are written to; only a plain file can be replaced. A link stays one: its target is replaced.
        let target = match std::fs::metadata(path) {
            Ok(there) if !there.is_file() => {
                let file = std::fs::OpenOptions::new().write(true).open(path)?;
                return Ok(Sink { to: BufWriter::with_capacity(1 << 16, Box::new(file)), file: None });
            }
            Ok(_) => std::fs::canonicalize(path)?,
            Err(_) => path.to_owned(),
        };
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (file, temporary) =
            readable(tempfile::Builder::new().prefix(".spraywire-")).tempfile_in(folder)?.into_parts();
        Ok(Sink { to: BufWriter::with_capacity(1 << 16, Box::new(file)), file: Some((temporary, target)) })
    }

    fn check(&self, result: std::io::Result<()>) -> Result<(), Error> {
        result.map_err(|e| match &self.file {
            Some((_, path)) => cannot_write(path, &e),
            None => Error::output(&e),
        })
    }

    fn finish(mut self) -> Result<(), Error> {
        let wrote = self.to.write_all(b"\n").and_then(|()| self.to.flush());
        self.check(wrote)?;
        match self.file {
            Some((temporary, path)) => temporary.persist(&path).map_err(|e| cannot_write(&path, &e.error)),
            None => Ok(()),
        }
    }
}

/// Temporary files are private by default; a report should be as readable as any other file.
fn readable<'a, 'b>(builder: &'a mut tempfile::Builder<'b, 'b>) -> &'a mut tempfile::Builder<'b, 'b> {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(std::fs::Permissions::from_mode(0o666))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Error {
    Error::usage(format_args!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_ways_write_the_same_document() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a.json"), dir.path().join("b.json"));
        let mut document = Document::new("bw", &json!({"size": 64}));
        document.set("results", &json!([{"x": 1}, {"x": 2}]));
        document.set("passed", &true);
        document.write(&JsonTarget::File(a.clone())).unwrap();

        let mut stream = Stream::begin(&JsonTarget::File(b.clone()), "bw", &json!({"size": 64})).unwrap();
        stream.push(&json!({"x": 1})).unwrap();
        stream.push(&json!({"x": 2})).unwrap();
        assert!(!b.exists(), "not before it is whole");
        stream.finish(&[("passed", json!(true))]).unwrap();

        let read = |p: &Path| serde_json::from_slice::<Value>(&std::fs::read(p).unwrap()).unwrap();
        assert_eq!(read(&a), read(&b));
        assert_eq!(read(&a)["schema"], "spraywire/1");
        assert_eq!(read(&a), document.value());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file stays");
    }

    #[test]
    fn nothing_stays_of_a_report_that_was_not_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let stream = Stream::begin(&JsonTarget::File(path.clone()), "bw", &json!({})).unwrap();
        drop(stream);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let missing = JsonTarget::File(dir.path().join("none/a.json"));
        let error = Document::new("bw", &json!({})).write(&missing).unwrap_err();
        assert!(error.to_string().contains("none/a.json"), "{error}");
    }

    #[test]
    fn devices_are_written_to_and_links_kept() {
        use std::os::unix::fs::FileTypeExt;
        let document = Document::new("bw", &json!({}));
        document.write(&JsonTarget::File("/dev/null".into())).unwrap();
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());

        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        document.write(&JsonTarget::File(link.clone())).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(std::fs::read_to_string(&real).unwrap().contains(SCHEMA));
    }

    #[test]
    fn the_argument_has_three_forms() {
        assert_eq!(JsonTarget::from_arg(None), JsonTarget::None);
        assert_eq!(JsonTarget::from_arg(Some(&None)), JsonTarget::Stdout);
        assert_eq!(JsonTarget::from_arg(Some(&Some("-".into()))), JsonTarget::Stdout);
        assert_eq!(JsonTarget::from_arg(Some(&Some("x".into()))), JsonTarget::File("x".into()));
    }
}

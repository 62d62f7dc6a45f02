//! `--config FILE`: a TOML file whose keys are the long names of the flags.
//!
//! The file is turned into arguments in front of those of the command line, by what clap itself knows of each command, so
//! that file and flags cannot drift apart. A flag that is given wins over the file, and so does one that excludes it.

use crate::error::Error;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The flag's own name, which no file may hold.
const FLAG: &str = "config";
/// Flags that end a command before it began.
const NOT_FOR_FILES: [&str; 3] = [FLAG, "help", "version"];
/// A file is read whole; this is a thousand times what one needs.
const MAX_BYTES: u64 = 1 << 20;

/// Where a command line got arguments from besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// The arguments, the program's name first.
    pub args: Vec<OsString>,
    /// The file, if one was named.
    pub file: Option<PathBuf>,
}

/// The command line with the arguments of its `--config` file in front.
///
/// # Errors
/// A file that cannot be read, is no TOML, or has a key or a value that no flag has.
pub fn expand(command: &Command, args: Vec<OsString>) -> Result<Expanded, Error> {
    let mut lenient = command.clone().ignore_errors(true);
    // Whatever is wrong is said by the parse that counts; here it only matters which command it is, and which file.
    let Ok(matches) = lenient.try_get_matches_from_mut(&args) else {
        return Ok(Expanded { args, file: None });
    };
    lenient.build();
    let (path, inner) = innermost(&matches);
    let Some(file) = inner.try_get_one::<PathBuf>(FLAG).ok().flatten().cloned() else {
        return Ok(Expanded { args, file: None });
    };
    let table = read(&file)?;
    let config = Config { file: &file, root: &lenient };
    config.check(&table)?;
    let added = config.arguments(&table, &path, inner)?;
    let place = after_commands(&args, path.len());
    let mut all = args;
    all.splice(place..place, added);
    Ok(Expanded { args: all, file: Some(file) })
}

/// The names of the subcommands in order, and what was given to the last.
fn innermost(matches: &ArgMatches) -> (Vec<String>, &ArgMatches) {
    let mut path = Vec::new();
    let mut inner = matches;
    while let Some((name, sub)) = inner.subcommand() {
        path.push(name.to_owned());
        inner = sub;
    }
    (path, inner)
}

/// The place behind the names of the first `depth` subcommands. What stands in front of them are global flags, of which
/// `--config` is the only one with a value.
fn after_commands(args: &[OsString], depth: usize) -> usize {
    let mut place = 1;
    let mut found = 0;
    while found < depth && place < args.len() {
        let text = args[place].to_string_lossy();
        match text.as_ref() {
            "--config" => place += 1,
            text if text.starts_with('-') => {}
            _ => found += 1,
        }
        place += 1;
    }
    place.min(args.len())
}

fn read(file: &Path) -> Result<Table, Error> {
    let cannot = |e: std::io::Error| Error::usage(format_args!("cannot read {}: {e}", file.display()));
    let opened = std::fs::File::open(file).map_err(cannot)?;
    let mut text = String::new();
    let mut limited = std::io::Read::take(opened, MAX_BYTES + 1);
    std::io::Read::read_to_string(&mut limited, &mut text).map_err(cannot)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::usage(format_args!("{} is larger than {MAX_BYTES} bytes", file.display())));
    }
    text.parse().map_err(|e| Error::usage(format_args!("{} is no TOML: {e}", file.display())))
}

struct Config<'a> {
    file: &'a Path,
    root: &'a Command,
}

impl Config<'_> {
    fn refuse(&self, what: impl std::fmt::Display) -> Error {
        Error::usage(format_args!("{}: {what}", self.file.display()))
    }

    /// Every key must be a flag of some command, and in a command's table a flag of that one; whether or not it is that
    /// command's turn, so that a slip is found at once.
    fn check(&self, table: &Table) -> Result<(), Error> {
        let mut known = Vec::new();
        collect_flags(self.root, &mut known);
        for (key, value) in table {
            match value {
                Value::Table(inner) => self.check_command(self.root, key, inner, "")?,
                _ if known.contains(&key.as_str()) => {}
                _ => return Err(self.unknown(key, &known, "")),
            }
        }
        Ok(())
    }

    fn check_command(&self, parent: &Command, name: &str, table: &Table, path: &str) -> Result<(), Error> {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let Some(command) = subcommand(parent, name) else {
            let names: Vec<&str> =
                parent.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name).collect();
            let hint = format!("tables are called like commands: {}", names.join(", "));
            return Err(self.refuse(format_args!("there is no command for the table [{path}]")).hint(hint));
        };
        let known: Vec<&str> = flags(command).filter_map(Arg::get_long).collect();
        for (key, value) in table {
            match value {
                Value::Table(inner) => self.check_command(command, key, inner, &path)?,
                _ if known.contains(&key.as_str()) => {}
                _ => return Err(self.unknown(key, &known, &path)),
            }
        }
        Ok(())
    }

    fn unknown(&self, key: &str, known: &[&str], path: &str) -> Error {
        let place = if path.is_empty() { String::new() } else { format!(" in [{path}]") };
        let command = if path.is_empty() { "COMMAND".to_owned() } else { path.replace('.', " ") };
        let likeness = |name: &&&str| (1000.0 * strsim::jaro_winkler(name, key)) as u64;
        let nearest = known.iter().max_by_key(likeness).filter(|name| likeness(name) > 700);
        let nearest = nearest.map_or(String::new(), |name| format!("did you mean `{name}`? "));
        let hint = format!("{nearest}keys are the long names of flags: spraywire {command} --help");
        self.refuse(format_args!("unknown key `{key}`{place}")).hint(hint)
    }

    /// The arguments for the command at `path`: its own table's, and those of the tables around it that are not set there.
    fn arguments(&self, table: &Table, path: &[String], given: &ArgMatches) -> Result<Vec<OsString>, Error> {
        let mut command = self.root;
        let mut tables = vec![table];
        let mut deepest = Some(table);
        for name in path {
            command = subcommand(command, name).unwrap_or(command);
            deepest = deepest.and_then(|t| t.get(name)).and_then(Value::as_table);
            tables.extend(deepest);
        }
        let mut arguments = Vec::new();
        for arg in flags(command) {
            let Some(name) = arg.get_long() else { continue };
            let value = tables.iter().rev().find_map(|t| t.get(name)).filter(|v| !v.is_table());
            let Some(value) = value else { continue };
            if is_given(given, arg) || excluded(command, arg, given) {
                continue;
            }
            self.argument(arg, name, value, &mut arguments)?;
        }
        Ok(arguments)
    }

    fn argument(&self, arg: &Arg, name: &str, value: &Value, out: &mut Vec<OsString>) -> Result<(), Error> {
        let wrong =
            |wants: &str| Err(self.refuse(format_args!("`{name}` wants {wants}, not {}", kind(value))));
        match (arg.get_action(), value) {
            (ArgAction::SetTrue, Value::Boolean(set)) => {
                out.extend(set.then(|| format!("--{name}").into()));
            }
            (ArgAction::SetTrue, _) => return wrong("true or false"),
            (ArgAction::Count, Value::Integer(n @ 0..=255)) => {
                out.extend((0..*n).map(|_| OsString::from(format!("--{name}"))));
            }
            (ArgAction::Count, _) => return wrong("a number from 0 to 255"),
            (ArgAction::Append, Value::Array(values)) => {
                for value in values {
                    match text(value) {
                        Some(text) => out.push(format!("--{name}={text}").into()),
                        None => return wrong("an array of texts"),
                    }
                }
            }
            (_, Value::Boolean(set)) if arg.get_num_args().is_some_and(|n| n.min_values() == 0) => {
                out.extend(set.then(|| format!("--{name}").into()));
            }
            _ => match text(value) {
                Some(text) => out.push(format!("--{name}={text}").into()),
                None => return wrong("a text or a number"),
            },
        }
        Ok(())
    }
}

/// A value as one would type it.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(n) => Some(n.to_string()),
        Value::Float(x) => Some(x.to_string()),
        _ => None,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "an array",
        Value::Table(_) => "a table",
    }
}

fn subcommand<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    command.get_subcommands().find(|c| c.get_name() == name && !c.is_hide_set())
}

/// What a file may set.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|a| a.get_long().is_some_and(|name| !NOT_FOR_FILES.contains(&name)))
}

fn collect_flags<'a>(command: &'a Command, known: &mut Vec<&'a str>) {
    known.extend(flags(command).filter_map(Arg::get_long));
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        collect_flags(inner, known);
    }
}

fn is_given(matches: &ArgMatches, arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    // Asking for what a command does not have would panic.
    matches.ids().any(|known| known == id) && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Whether something on the command line cannot stand beside that flag.
fn excluded(command: &Command, arg: &Arg, given: &ArgMatches) -> bool {
    let excludes = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|c| c.get_id() == other.get_id())
    };
    flags(command).filter(|other| is_given(given, other)).any(|o| excludes(arg, o) || excludes(o, arg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// What a command line becomes with a file of that text at the place of FILE.
    fn expanded(toml: &str, line: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.toml");
        std::fs::write(&file, toml).unwrap();
        let line = line.replace("FILE", file.to_str().unwrap());
        let args = std::iter::once("spraywire").chain(line.split_whitespace()).map(OsString::from).collect();
        let done = expand(&Cli::command(), args).map_err(|e| e.to_string())?;
        let text = |a: &OsString| a.to_str().unwrap().to_owned();
        Ok(done.args.iter().map(text).filter(|a| !a.contains("x.toml") && a != "--config").collect())
    }

    fn line(toml: &str, line: &str) -> String {
        expanded(toml, line).unwrap()[1..].join(" ")
    }

    #[test]
    fn inspect_takes_its_flags_from_a_file() {
        assert_eq!(line("json = true", "inspect a.pcap --config FILE"), "inspect --json a.pcap");
        assert_eq!(
            line("json = \"out\"\nverbose = 2", "--config FILE inspect a.pcap"),
            "inspect --json=out --verbose --verbose a.pcap"
        );
        assert_eq!(line("json = true", "inspect a.pcap"), "inspect a.pcap", "no file, nothing added");
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn tables_are_of_commands_and_win_over_what_stands_before_them() {
        let toml = "mtu = 1500\nip = [\"10.0.0.1\", \"fd77::1\"]\n[bw]\nmtu = 4200\nall = true\n[ud.recv]\nquiet = false\nqpn = 7\n";
        assert_eq!(line(toml, "lat --config=FILE"), "lat --ip=10.0.0.1 --ip=fd77::1 --mtu=1500");
        assert_eq!(line(toml, "bw --config=FILE h"), "bw --all --ip=10.0.0.1 --ip=fd77::1 --mtu=4200 h");
        assert_eq!(
            line(toml, "ud recv --config FILE"),
            "ud recv --qpn=7 --ip=10.0.0.1 --ip=fd77::1 --mtu=1500"
        );
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn the_command_line_wins() {
        let toml = "mtu = 1500\nip = \"10.0.0.1\"\nsize = 64\n";
        assert_eq!(line(toml, "bw --config FILE --mtu 900"), "bw --size=64 --ip=10.0.0.1 --mtu 900");
        assert_eq!(line(toml, "bw --config FILE --ip 10.0.0.9 -s 1k"), "bw --mtu=1500 --ip 10.0.0.9 -s 1k");
        // All sizes exclude one size, in whichever direction that was declared.
        assert_eq!(line("size = 64", "bw --config FILE -a"), "bw -a");
        assert_eq!(line("all = true", "bw --config FILE -s 64"), "bw -s 64");
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn what_a_command_requires_may_come_from_the_file() {
        let toml = "[ud.send]\nqpn = 0x10000\n";
        let args = expanded(toml, "ud send 192.0.2.1 --config FILE").unwrap();
        assert_eq!(args[1..].join(" "), "ud send --qpn=65536 192.0.2.1");
        use clap::Parser;
        assert!(Cli::try_parse_from(&args).is_ok());
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        let error = expanded("jsn = true", "inspect a --config FILE").unwrap_err();
        assert!(error.contains("unknown key `jsn`") && error.contains("did you mean `json`?"), "{error}");
        let error = expanded("[inspect]\nqqqq = 1", "inspect a --config FILE").unwrap_err();
        assert!(error.contains("`qqqq` in [inspect]") && !error.contains("did you mean"), "{error}");
        let error = expanded("[inspekt]\njson = true", "inspect a --config FILE").unwrap_err();
        assert!(error.contains("no command for the table [inspekt]"), "{error}");
        for own in ["config = \"y\"", "help = true", "version = true"] {
            assert!(expanded(own, "inspect a --config FILE").unwrap_err().contains("unknown key"), "{own}");
        }
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn a_slip_in_the_table_of_another_command_is_found_too() {
        let error = expanded("[bw]\nmtuu = 1", "inspect a --config FILE").unwrap_err();
        assert!(error.contains("`mtuu` in [bw]") && error.contains("`mtu`"), "{error}");
        // A flag of some command may stand outside the tables, for those that have it.
        assert_eq!(line("mtu = 1500", "inspect a --config FILE"), "inspect a");
        let error = expanded("[demo-server]\nmtu = 1", "inspect a --config FILE").unwrap_err();
        assert!(error.contains("no command"), "{error}");
    }

    #[test]
    fn values_must_fit_their_flag() {
        for (toml, wants) in [
            ("verbose = true", "a number from 0 to 255"),
            ("verbose = -1", "a number from 0 to 255"),
            ("json = [1]", "a text or a number"),
            ("json = 1979-05-27", "a text or a number, not a date"),
        ] {
            let error = expanded(toml, "inspect a --config FILE").unwrap_err();
            assert!(error.contains(wants), "{toml}: {error}");
        }
        let error = expanded("json = ", "inspect a --config FILE").unwrap_err();
        assert!(error.contains("is no TOML") && error.contains("line 1"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_is_said_so() {
        let args = ["spraywire", "inspect", "a", "--config", "/does/not/exist"].map(OsString::from).to_vec();
        let error = expand(&Cli::command(), args).unwrap_err();
        assert!(error.to_string().contains("cannot read /does/not/exist"), "{error}");
    }
}

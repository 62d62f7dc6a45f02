//! How a command ends: the exit codes, and errors that say what to do.

use std::fmt;
use std::process::ExitCode;

/// The exit codes of every subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// 0: it was done, and what was looked at is right.
    Ok = 0,
    /// 1: what was measured or inspected is wrong or failed.
    Failed = 1,
    /// 2: the command was asked for something that it cannot do: bad arguments, files that cannot be read or written, no port.
    Usage = 2,
    /// 130: interrupted by a signal; what was done until then is reported.
    Interrupted = 130,
    /// 141: standard output was closed before the end, as by `| head`.
    OutputClosed = 141,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command ended without its result: one line, and another that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The exit code.
    pub exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Error {
    /// Exit code 1: the thing itself failed.
    pub fn failed(message: impl fmt::Display) -> Error {
        Error { exit: Exit::Failed, message: message.to_string(), hint: None }
    }

    /// Exit code 2: it cannot be done as it was asked for.
    pub fn usage(message: impl fmt::Display) -> Error {
        Error { exit: Exit::Usage, message: message.to_string(), hint: None }
    }

    /// Exit code 130: a signal came before there was a result.
    pub fn interrupted() -> Error {
        Error { exit: Exit::Interrupted, message: "interrupted".to_owned(), hint: None }
    }

    /// What ends a command whose port went away.
    pub fn port_gone() -> Error {
        Error::failed("the port is gone: its interface was removed, or moved to another network namespace")
            .hint("make the interface anew, then start again")
    }

    /// A failure to write a result. A closed standard output is no fault of anybody: it ends the command in silence.
    pub fn output(error: &std::io::Error) -> Error {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Error {
                exit: Exit::OutputClosed,
                message: "standard output was closed".to_owned(),
                hint: None,
            },
            // Not 1: that says that what was looked at is wrong.
            _ => Error::usage(format_args!("cannot write the output: {error}"))
                .hint("make room there, or let it go elsewhere"),
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Error {
        self.hint = Some(hint.to_string());
        self
    }

    /// What went wrong, without the program's name.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The hint.
    pub fn what_to_do(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Says it on standard error: `spraywire: error: …`, and the hint on a line of its own.
    pub fn print(&self) {
        use std::io::Write;
        if self.exit == Exit::OutputClosed {
            return;
        }
        // Nobody is left to tell if standard error is closed too.
        let _ = writeln!(std::io::stderr().lock(), "{self}");
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spraywire: error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_codes() {
        let e = Error::usage("no port").hint("give one with --port");
        assert_eq!(e.to_string(), "spraywire: error: no port\n  give one with --port");
        assert_eq!(e.exit as u8, 2);
        assert_eq!(Error::failed("x").exit as u8, 1);
        assert_eq!(Error::interrupted().exit as u8, 130);
        let closed = Error::output(&std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit as u8, 141);
        assert_eq!(Error::output(&std::io::ErrorKind::StorageFull.into()).exit, Exit::Usage);
    }
}

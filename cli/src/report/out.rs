//! Standard output for results: buffered, and without a panic when it is closed.

use crate::error::Error;
use std::fmt;
use std::io::{BufWriter, IsTerminal, Write};

/// Where the text for people goes.
pub struct Out {
    to: BufWriter<Box<dyn Write + Send>>,
    /// Lines are handed on one by one where somebody watches.
    flush_lines: bool,
}

impl Out {
    /// Standard output, line by line on a terminal.
    pub fn stdout() -> Out {
        let stdout = std::io::stdout();
        let flush_lines = stdout.is_terminal();
        Out { to: BufWriter::with_capacity(1 << 16, Box::new(stdout)), flush_lines }
    }

    /// Standard error: for people, while standard output is taken by JSON.
    pub fn stderr() -> Out {
        Out { to: BufWriter::new(Box::new(std::io::stderr())), flush_lines: true }
    }

    /// Nowhere.
    pub fn nowhere() -> Out {
        Out { to: BufWriter::new(Box::new(std::io::sink())), flush_lines: false }
    }

    /// Anything that takes bytes.
    pub fn to(writer: Box<dyn Write + Send>) -> Out {
        Out { to: BufWriter::new(writer), flush_lines: true }
    }

    /// Hands every line on at once, terminal or not: for output that others wait for.
    #[must_use]
    pub fn unbuffered(mut self) -> Out {
        self.flush_lines = true;
        self
    }

    /// The same for an output in use.
    pub fn flush_each_line(&mut self) {
        self.flush_lines = true;
    }

    /// Writes one line.
    ///
    /// # Errors
    /// The writer's, as [`Error::output`] sees it.
    pub fn line(&mut self, line: impl fmt::Display) -> Result<(), Error> {
        writeln!(self.to, "{line}").map_err(|e| Error::output(&e))?;
        if self.flush_lines { self.flush() } else { Ok(()) }
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// The writer's, as [`Error::output`] sees it.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.to.flush().map_err(|e| Error::output(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Exit;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_output_is_an_error_and_no_panic() {
        let mut out = Out::to(Box::new(Closed));
        let error = out.line("x").unwrap_err();
        assert_eq!(error.exit, Exit::OutputClosed);
    }
}

//! The server process, as its parent sees it.

use super::server::READY;
use super::{DemoArgs, device};
use crate::cmd::demo::cores::Cores;
use crate::endpoint::SERVER_IP;
use crate::error::{Error, Exit};
use crate::signal::Stop;
use clap::ValueEnum;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the server may take to end by itself once the session is over.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A line of standard error longer than this is cut into several: nothing grows without bound.
const LINE: u64 = 4096;
/// How much of standard error is kept for an error message.
const KEPT: usize = 8192;

/// A server that runs; it is ended when this is dropped.
pub struct ServerProcess {
    child: Child,
    /// Whether it became ready; nothing comes if it ends before.
    ready: Receiver<()>,
    /// Returns what it said on standard error, when it has ended.
    listener: Option<JoinHandle<String>>,
    /// The same, once that was asked.
    said: String,
    ended: Option<ExitStatus>,
}

impl ServerProcess {
    /// Starts this program again as the server.
    ///
    /// # Errors
    /// If the system does not start it.
    pub fn start(
        args: &DemoArgs,
        socket: &str,
        cores: &Cores,
        verbosity: u8,
    ) -> Result<ServerProcess, Error> {
        let program = std::env::current_exe()
            .map_err(|e| Error::failed(format_args!("cannot find this program to start it again: {e}")))?;
        let mut command = Command::new(&program);
        command
            .arg("demo-server")
            .args(["--port", &device("server", socket), "--ip", &SERVER_IP.to_string()])
            .args(["--ib-mtu", &args.ib_mtu.bytes().to_string()])
            .args(["--service", &name(&args.service), "--worker", &name(&args.worker)])
            .args(["--idle", &name(&args.idle)])
            .args((0..verbosity).map(|_| "-v"));
        if let Some(cores) = cores.server() {
            let list: Vec<String> = cores.0.iter().map(usize::to_string).collect();
            command.args(["--cores", &list.join(",")]);
        }
        if let Some(eal) = &args.eal {
            command.arg(format!("--eal={eal}"));
        }
        // A process group of its own: a Ctrl-C is for the client alone, which then tells the server to end.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|e| {
            Error::failed(format_args!("cannot start {} again as the server: {e}", program.display()))
        })?;
        let (tell, ready) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let first = BufReader::new(out).lines().next();
                if first.is_some_and(|line| line.is_ok_and(|l| l == READY)) {
                    // The parent may have given up waiting.
                    let _ = tell.send(());
                }
            });
        }
        let listener = child.stderr.take().map(|err| std::thread::spawn(move || listen(err, verbosity > 0)));
        Ok(ServerProcess { child, ready, listener, said: String::new(), ended: None })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it takes clients.
    ///
    /// # Errors
    /// If it ends before, or does not get there in time, or a stop is requested.
    pub fn wait_ready(&mut self, limit: Duration, stop: &Stop) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            match self.ready.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => return Ok(()),
                Err(_) if stop.requested() => return Err(Error::interrupted()),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::failed(format_args!(
                        "the server process {} was not ready within {} s",
                        self.id(),
                        limit.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.wait(END_LIMIT);
                    return Err(self.died().unwrap_or_else(|| {
                        Error::failed(format_args!("the server process {} closed its output", self.id()))
                    }));
                }
            }
        }
    }

    /// Why it ended, if it did and should not have.
    pub fn died(&mut self) -> Option<Error> {
        // A peer that was killed is missed before the system has taken it down altogether.
        self.wait(Duration::from_millis(200));
        let status = self.ended.filter(|status| !status.success())?;
        let how = match (status.signal(), status.code()) {
            (Some(signal), _) => format!("was killed by signal {signal}"),
            (None, Some(code)) => format!("ended with exit code {code}"),
            (None, None) => "ended".to_owned(),
        };
        let message = format!("the server process {} {how}", self.id());
        // What it could not do as it was asked for, this command cannot either.
        let is_usage = status.code() == Some(Exit::Usage as i32);
        let error = if is_usage { Error::usage(message) } else { Error::failed(message) };
        if let Some(thread) = self.listener.take() {
            self.said = thread.join().unwrap_or_default();
        }
        Some(match last_words(&self.said) {
            "" => error,
            said => error.hint(format_args!("it said: {said}")),
        })
    }

    /// Ends it after the session's end.
    ///
    /// # Errors
    /// If it ended otherwise than it should, or not at all.
    pub fn end(&mut self) -> Result<(), Error> {
        self.wait(END_LIMIT);
        if self.ended.is_none() {
            let error = format!("the server process {} did not end, and was killed", self.id());
            self.kill();
            return Err(Error::failed(error));
        }
        self.died().map_or(Ok(()), Err)
    }

    /// Waits for its end.
    fn wait(&mut self, limit: Duration) {
        let start = Instant::now();
        while self.ended.is_none() {
            match self.child.try_wait() {
                Ok(Some(status)) => self.ended = Some(status),
                _ if start.elapsed() >= limit => return,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn kill(&mut self) {
        // Neither can fail for a child that was not waited for.
        let _ = self.child.kill();
        self.ended = self.child.wait().ok();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // The end of its input asks it to end.
            drop(self.child.stdin.take());
            self.wait(Duration::from_secs(2));
        }
        if self.ended.is_none() {
            self.kill();
        }
    }
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// Reads what the server says, passes it on if wanted, and returns the end of it.
fn listen(err: impl Read, pass_on: bool) -> String {
    let mut err = BufReader::new(err);
    let mut said = String::new();
    let mut line = Vec::new();
    while err.by_ref().take(LINE).read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        if pass_on {
            eprint_line(text.trim_end());
        }
        said.push_str(&text);
        if said.len() > KEPT {
            let cut = said.len() - KEPT / 2;
            let cut = (cut..said.len()).find(|&i| said.is_char_boundary(i)).unwrap_or(said.len());
            said.drain(..cut);
        }
        line.clear();
    }
    said
}

/// The error that a server ended with, or else everything.
fn last_words(said: &str) -> &str {
    const ERROR: &str = "spraywire: error: ";
    said.rfind(ERROR).map_or(said, |at| &said[at + ERROR.len()..]).trim()
}

fn eprint_line(text: &str) {
    use std::io::Write;
    // Nobody is left to tell if standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "server: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_the_error() {
        assert_eq!(last_words(" WARN x\nspraywire: error: no port\n  give one\n"), "no port\n  give one");
        assert_eq!(last_words("\nfatal\n"), "fatal");
        assert_eq!(last_words(""), "");
    }

    #[test]
    fn of_what_was_said_the_end_is_kept() {
        assert_eq!(listen(&b"one\ntwo"[..], false), "one\ntwo");
        let long = "µ".repeat(100_000);
        let said = listen(long.as_bytes(), false);
        assert!(said.len() <= KEPT && said.len() >= KEPT / 4 && said.ends_with('µ'), "{}", said.len());
    }
}

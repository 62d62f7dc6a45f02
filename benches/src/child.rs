//! Child processes that cannot outlive us or keep us waiting.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{self, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a wait looks whether we are to stop. Seldom, since the processors belong to what is measured.
const LOOK: Duration = Duration::from_millis(100);
/// Lines of standard error that are kept for the message of a failure.
const TAIL: usize = 12;

/// Why a run gave no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// We are to stop.
    Interrupted,
    /// Something else, in words.
    Said(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Said(text) => f.write_str(text),
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Said(text)
    }
}

/// Set by a signal.
#[derive(Clone)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asked for by SIGINT and SIGTERM. The second of them ends the process at once.
    pub fn on_signals() -> std::io::Result<Stop> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Stop(flag))
    }

    /// Never asked for.
    #[cfg(test)]
    pub fn never() -> Stop {
        Stop(Arc::new(AtomicBool::new(false)))
    }

    /// An error if it has been asked for.
    pub fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Sleeps, unless it is asked for meanwhile.
    pub fn sleep(&self, time: Duration) -> Result<(), Failure> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK));
        }
    }
}

/// A child with its output as lines. Dropped, it is killed.
pub struct Child {
    name: String,
    process: process::Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
    stop: Stop,
}

impl Child {
    /// Starts it; `name` is for messages.
    pub fn start(name: &str, command: &mut Command, stop: &Stop) -> Result<Child, Failure> {
        stop.check()?;
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{name}: cannot start {}: {e}", command.get_program().display()))?;
        let (to, lines) = channel();
        if let Some(stdout) = process.stdout.take() {
            thread::spawn(move || pass_lines(stdout, &to));
        }
        let errors = Arc::<Mutex<VecDeque<String>>>::default();
        if let Some(stderr) = process.stderr.take() {
            let kept = errors.clone();
            thread::spawn(move || keep_tail(stderr, &kept));
        }
        let stdin = process.stdin.take();
        Ok(Child { name: name.to_owned(), process, stdin, lines, errors, stop: stop.clone() })
    }

    /// The next line of its output; none after the last.
    fn line(&mut self, until: Instant) -> Result<Option<String>, Failure> {
        loop {
            self.stop.check()?;
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(LOOK)) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(self.failure("took too long"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits for a line that contains `text` and returns it.
    pub fn expect(&mut self, text: &str, limit: Duration) -> Result<String, Failure> {
        let until = Instant::now() + limit;
        while let Some(line) = self.line(until)? {
            if line.contains(text) {
                return Ok(line);
            }
        }
        Err(self.failure(&format!("ended before it said {text:?}")))
    }

    /// Waits until its standard error has said `text`, or it has ended, or the limit is over: for a peer that says only
    /// there that it is ready. Its end and its silence show later by themselves.
    pub fn await_error(&mut self, text: &str, limit: Duration) -> Result<(), Failure> {
        let until = Instant::now() + limit;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            if self.errors().contains(text) {
                return Ok(());
            }
            self.stop.sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// Writes a line to its input.
    pub fn say(&mut self, text: &str) -> Result<(), Failure> {
        let wrote = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{text}").and_then(|()| stdin.flush()),
            None => Ok(()),
        };
        wrote.map_err(|e| self.failure(&format!("takes no input ({e})")))
    }

    /// Waits for its end, and returns what it wrote since. An error unless it ended well.
    pub fn finish(mut self, limit: Duration) -> Result<String, Failure> {
        let until = Instant::now() + limit;
        let mut output = String::new();
        while let Some(line) = self.line(until)? {
            output.push_str(&line);
            output.push('\n');
        }
        let status = self.wait(until)?;
        if status.success() { Ok(output) } else { Err(self.failure(&format!("ended with {status}"))) }
    }

    /// What it wrote to standard error last.
    fn errors(&self) -> String {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn wait(&mut self, until: Instant) -> Result<ExitStatus, Failure> {
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < until => self.stop.sleep(Duration::from_millis(5))?,
                Ok(None) => return Err(self.failure("did not end")),
                Err(e) => return Err(self.failure(&format!("cannot be waited for ({e})"))),
            }
        }
    }

    fn failure(&self, what: &str) -> Failure {
        // A signal from the terminal reaches children first.
        if let Err(interrupted) = self.stop.check() {
            return interrupted;
        }
        // What it wrote last may still be on its way.
        thread::sleep(Duration::from_millis(50));
        let errors = self.errors();
        let said = if errors.is_empty() { String::new() } else { format!("; it said:\n{errors}") };
        Failure::Said(format!("{} {what}{said}", self.name))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Either it has ended, or it ends now; there is nothing to do about an error.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pass_lines(from: impl Read, to: &Sender<String>) {
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

fn keep_tail(from: impl Read, tail: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(String::from_utf8_lossy(&line).into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::start("the child", Command::new("sh").args(["-c", script]), &Stop::never()).unwrap()
    }

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn lines_are_awaited_and_the_rest_is_returned() {
        let mut child = shell("echo one; echo READY now; read x; echo got $x; echo bye");
        assert_eq!(child.expect("READY", SOON).unwrap(), "READY now");
        child.say("this").unwrap();
        assert_eq!(child.finish(SOON).unwrap(), "got this\nbye\n");
    }

    #[test]
    fn a_failure_says_what_the_child_said() {
        let failed = shell("echo broken >&2; exit 3").finish(SOON).unwrap_err().to_string();
        assert!(failed.contains("the child ended with") && failed.contains("broken"), "{failed}");
        let failed = shell("echo other").expect("READY", SOON).unwrap_err().to_string();
        assert!(failed.contains("before it said \"READY\""), "{failed}");
    }

    #[test]
    fn readiness_may_be_said_on_standard_error() {
        let start = Instant::now();
        let mut child = shell("echo waiting here >&2; exec sleep 60");
        child.await_error("waiting", SOON).unwrap();
        assert!(child.errors().contains("waiting here"));
        let mut silent = shell("exit 0");
        silent.await_error("waiting", SOON).unwrap();
        assert!(start.elapsed() < SOON);
    }

    #[test]
    fn nobody_waits_for_ever_and_nothing_survives() {
        let start = Instant::now();
        let mut child = shell("echo $$; exec sleep 60");
        let pid = child.expect("", SOON).unwrap();
        let failed = child.expect("READY", Duration::from_millis(50)).unwrap_err().to_string();
        assert!(failed.contains("too long"), "{failed}");
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert!(start.elapsed() < SOON);
    }

    #[test]
    fn a_stop_ends_every_wait() {
        let stop = Stop::never();
        let mut child = Child::start("the child", Command::new("sleep").arg("60"), &stop).unwrap();
        stop.0.store(true, Ordering::Relaxed);
        assert_eq!(child.expect("READY", SOON), Err(Failure::Interrupted));
        assert_eq!(stop.sleep(SOON), Err(Failure::Interrupted));
        assert!(matches!(
            Child::start("another", &mut Command::new("true"), &stop),
            Err(Failure::Interrupted)
        ));
    }

    #[test]
    fn a_missing_program_is_named() {
        let missing = Child::start("x", &mut Command::new("no-such-program"), &Stop::never()).err().unwrap();
        assert!(missing.to_string().contains("no-such-program"), "{missing}");
    }
}

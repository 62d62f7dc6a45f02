//! Processes whose words are read while they run.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A process that is killed when its owner is dropped. What it says is read at once, so it never waits for its reader.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    lines: Receiver<String>,
    said: [Arc<Mutex<String>>; 2],
    readers: Vec<JoinHandle<()>>,
}

/// How a process ended and what it said.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Ended {
    /// Its exit code; none if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Its standard output.
    ///
    /// # Panics
    /// If it did not end with exit code 0.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.out, self.err);
        self.out
    }
}

impl Process {
    /// Starts a command; its outputs are taken over.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Process {
        let name = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        let (sender, lines) = channel();
        let said = [Arc::<Mutex<String>>::default(), Arc::default()];
        let out: Option<Box<dyn Read + Send>> = child.stdout.take().map(|out| Box::new(out) as _);
        let err: Option<Box<dyn Read + Send>> = child.stderr.take().map(|err| Box::new(err) as _);
        let readers = [out, err].into_iter().flatten().zip(&said).map(|(stream, said)| {
            let (sender, said) = (sender.clone(), said.clone());
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = Vec::new();
                while let Ok(1..) = stream.read_until(b'\n', &mut line) {
                    let text = String::from_utf8_lossy(&line).into_owned();
                    said.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
                    // Nobody may be waiting any more.
                    let _ = sender.send(text);
                    line.clear();
                }
            })
        });
        let readers = readers.collect();
        Process { child, name, lines, said, readers }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far: standard output and standard error.
    pub fn said(&self) -> [String; 2] {
        self.said.each_ref().map(|said| said.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Waits for a line with `text` in it, on either output, and returns the line. Lines that an earlier wait passed over
    /// are not looked at again.
    ///
    /// # Panics
    /// If none comes within `limit`, or the process ends before, with what it said.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> String {
        let start = Instant::now();
        loop {
            match self.lines.recv_timeout(limit.saturating_sub(start.elapsed())) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} did not say {text:?} within {limit:?}: {:?}", self.name, self.said())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{} ended without saying {text:?}: {:?}", self.name, self.said())
                }
            }
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Kills it and waits for its end.
    pub fn kill(mut self) -> Ended {
        let _ = self.child.kill();
        self.end(Duration::from_secs(60))
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within `limit`, with what it said.
    pub fn end(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(e) => panic!("{}: {e}", self.name),
            }
            assert!(
                start.elapsed() < limit,
                "{} does not end within {limit:?}: {:?}",
                self.name,
                self.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        for reader in self.readers.drain(..) {
            // A reader does not panic; if it did, what was read stands all the same.
            let _ = reader.join();
        }
        let [out, err] = self.said();
        Ended { status, out, err }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

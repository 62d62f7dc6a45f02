//! Pairs of `spraywire bw` at both ends of a `spraywire testbed`: routers and paths of the kernel.

use super::reliable::sample;
use super::spraywire::WAITING;
use super::{END, START, Setup};
use crate::child::{Child, Failure, Stop};
use crate::contest::Sample;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A testbed that nobody else uses, taken down when dropped.
pub struct Bed {
    spraywire: PathBuf,
    name: String,
}

impl Bed {
    /// One with so many paths, and what else there is of them.
    pub fn up(setup: &Setup, paths: u32, options: &[&str]) -> Result<Bed, Failure> {
        let bed = Bed { spraywire: setup.spraywire.clone(), name: format!("bench{}", std::process::id()) };
        let paths = format!("--paths={paths}");
        bed.run("up", &[&[paths.as_str()], options].concat())?;
        Ok(bed)
    }

    /// Changes a path, counted from 1.
    pub fn path(&self, path: u32, options: &[&str]) -> Result<(), Failure> {
        self.run("path", &[&[path.to_string().as_str()], options].concat()).map(drop)
    }

    /// Packets that the left router has sent into a path since the testbed was made.
    pub fn carried(&self, path: usize) -> Result<u64, Failure> {
        let status = self.run("status", &["--json"])?;
        serde_json::from_str::<Value>(&status)
            .ok()
            .and_then(|status| status.pointer(&format!("/results/{}/to_right/packets", path - 1))?.as_u64())
            .ok_or_else(|| Failure::Said(format!("the status has no packets of path {path}: {status}")))
    }

    fn run(&self, what: &str, options: &[&str]) -> Result<String, Failure> {
        let said = |e: &dyn std::fmt::Display| Failure::Said(format!("spraywire testbed {what}: {e}"));
        let output = self.testbed(what).args(options).output().map_err(|e| said(&e))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(said(&String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn testbed(&self, what: &str) -> Command {
        let mut command = Command::new(&self.spraywire);
        command.args(["testbed", what, "--name", &self.name]).stdin(Stdio::null());
        command
    }

    /// The command line of the server (0) on the right or the client (1) on the left, and what only it has.
    fn line(&self, setup: &Setup, side: usize, options: &[String]) -> Vec<String> {
        let (host, network) = [("right1", 201), ("left1", 101)][side];
        let words = [
            format!("netns exec spwtb-{}-{host} {} bw", self.name, self.spraywire.display()),
            format!("--port net_af_packet0,iface=e0 --ip 10.78.{network}.1/24 --gateway 10.78.{network}.254"),
            format!("--cores {} --json --wait 20", setup.cores[side]),
        ];
        words
            .iter()
            .flat_map(|line| line.split(' '))
            .map(str::to_owned)
            .chain(options.iter().cloned())
            .collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // What it leaves, a later `up` of the name removes.
        let _ = self.testbed("down").stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Goodput of messages of `size` bytes over so many paths; payload bits per second as received.
pub fn goodput(setup: &Setup, bed: &Bed, paths: u32, size: usize, stop: &Stop) -> Result<Sample, Failure> {
    let options = [format!("--size={size}")];
    sample(&report(setup, bed, paths, &options, stop, || Ok(()))?, "goodput_bits_per_second")
}

/// The client's report of a run over so many paths, during which `meanwhile` happens.
pub fn report(
    setup: &Setup,
    bed: &Bed,
    paths: u32,
    options: &[String],
    stop: &Stop,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<Value, Failure> {
    let time = Duration::from_secs_f64(setup.warmup + setup.seconds);
    let both = format!("--paths={paths}");
    let mut client = vec![both.clone(), format!("--duration={}ms", time.as_millis())];
    client.extend(options.iter().cloned());
    client.push("10.78.201.1".to_owned());
    let start = |name, side, options: &[String]| {
        Child::start(name, Command::new("ip").args(bed.line(setup, side, options)), stop)
    };
    let mut server = start("the spraywire server", 0, &[both])?;
    server.await_error(WAITING, START)?;
    let client = start("the spraywire client", 1, &client)?;
    meanwhile()?;
    let output = client.finish(START + time + END)?;
    server.finish(END)?;
    serde_json::from_str(&output).map_err(|e| Failure::Said(format!("spraywire's JSON cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::test_setup;

    #[test]
    fn command_lines() {
        let setup = test_setup();
        // Nothing is up: there is nothing to take down either.
        let bed = Bed { spraywire: "/no/such/spraywire".into(), name: "x".into() };
        assert_eq!(
            bed.line(&setup, 1, &["--paths=8".to_owned()]).join(" "),
            "netns exec spwtb-x-left1 /no/such/spraywire bw --port net_af_packet0,iface=e0 --ip 10.78.101.1/24 --gateway 10.78.101.254 \
             --cores 3 --json --wait 20 --paths=8"
        );
        let Err(Failure::Said(why)) =
            Bed::up(&Setup { spraywire: "/no/such/spraywire".into(), ..setup }, 8, &[])
        else {
            panic!("it is up")
        };
        assert!(why.starts_with("spraywire testbed up: "), "{why}");
    }
}

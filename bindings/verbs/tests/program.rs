//! What Debian's own programs do not reach: a verbs program in C of our own, compiled against the installed header and run with
//! the library preloaded, on two devices that meet in shared memory. Needs no root.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, which cargo builds beside this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let library = own.with_file_name("libspraywire_verbs.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// Compiles a program of these sources.
fn compile(sources: &[&str], name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program");
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verbs-{name}-{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    cc.args(sources.iter().map(|name| folder.join(name)));
    let output = cc.arg("-o").arg(&to).args(["-libverbs", "-lpthread"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// The program, compiled once.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile(&["cases.c", "ends.c", "messages.c", "life.c", "lists.c"], "program"))
}

/// Runs a program over two devices that meet.
fn run(program: &Path, case: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("devices.toml");
    let socket = format!("spw-verbs-{}-{case}", std::process::id());
    let device = |number: u8, role: &str| {
        let last = number + 1;
        format!(
            "[[device]]\nport = \"net_memif{number},role={role},id=0,socket={socket}\"\n\
             ip = [\"192.0.2.{last}\", \"fd77::{last}\"]\n"
        )
    };
    let text = format!("pkey = [0xffff, 0x8001]\n{}{}", device(0, "server"), device(1, "client"));
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "120"]).arg(program).arg(case);
    // The C library fills what is freed: who uses it later reads no zeros. What it keeps in a thread's own list it would not fill.
    command.env("MALLOC_PERTURB_", "165").env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    let sockets = folder.path().join("run");
    command.env("SPRAYWIRE_RUNTIME_DIR", &sockets);
    let output = command.env("LD_PRELOAD", library()).env("SPRAYWIRE_CONFIG", &config).output().unwrap();
    // The socket by which it could be asked was there, as its folder is, and went with it.
    let left: Vec<_> = std::fs::read_dir(&sockets).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{case} left {left:?}");
    output
}

/// One case of the program; what it said on standard error.
fn right(case: &str) -> String {
    right_of(program(), case)
}

fn right_of(program: &Path, case: &str) -> String {
    let output = run(program, case);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{case}: {}\n{out}{err}", output.status);
    assert_eq!(out, format!("{case}: right\n"));
    err.into_owned()
}

macro_rules! cases {
    ($($case:ident: $what:ident),* $(,)?) => {
        $(#[test]
        fn $what() {
            right(stringify!($case).trim_start_matches("r#"));
        })*
    };
}

cases! {
    grh: the_area_in_front_of_a_message_names_its_sender,
    stale: deregistered_memory_is_never_written,
    short: a_receive_that_is_too_short_ends_its_queue_pair,
    keys: wrong_keys_are_dropped_and_counted,
    full: full_queues_refuse_and_lose_nothing,
    overrun: a_completion_queue_does_not_overrun,
    outstanding: queue_pairs_go_with_their_work,
    forked: a_child_has_no_device_and_its_parent_goes_on,
    threads: threads_share_devices,
    cycles: ten_thousand_opens_leave_nothing_behind,
    extended: the_extended_interfaces_send_and_poll,
    events: sleepers_at_a_channel_are_woken,
    lists: lists_of_requests_that_differ_arrive_in_order,
    alike: what_differs_from_the_one_before_is_not_sent_as_if_it_did_not,
    held: sends_that_wait_keep_their_bytes_and_go_with_their_queue_pair,
    odd: what_is_out_of_bounds_or_in_use_is_refused,
    ending: threads_that_poll_do_not_hear_of_the_end,
}

#[test]
fn what_was_posted_leaves_when_the_process_ends() {
    let program = compile(&["last.c", "ends.c"], "last");
    right_of(&program, "last");
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn what_cannot_be_is_refused_with_a_line_that_says_why() {
    let said = right("refused");
    for line in [
        "there are no RC queue pairs, only UD ones (perftest: -c UD)",
        "there are no UC queue pairs",
        "there are no shared receive queues",
        "there is no multicast",
        "there are no memory windows",
        "nobody answers for 192.0.2.99",
        "there is no GID 7: the port has 2",
        "the mask of a transition from Reset to Init lacks: 0x50",
        "there is no transition from Reset to ReadyToSend",
        "4097 bytes are more than the 4096 of one UD message",
        "10 bytes are more than the 0 of inline data",
        "sends only, no operation 0",
    ] {
        assert!(said.contains(line), "no {line:?} in:\n{said}");
    }
}

/// Opens the first device twice, and a second one in between unless there is a `word`; what it said on either output.
fn again(config: &str, word: &[&str]) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("devices.toml");
    std::fs::write(&file, config).unwrap();
    let program = compile(&["again.c"], "again");
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(&program).args(word);
    let output = command.env("LD_PRELOAD", library()).env("SPRAYWIRE_CONFIG", &file).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    (out.into_owned(), err.into_owned())
}

#[test]
fn a_device_that_could_not_be_opened_can_be_once_nothing_stands_in_the_way() {
    let socket = format!("spw-verbs-{}-again", std::process::id());
    let port = |n, role: &str| {
        format!("port = \"net_memif{n},role={role},id=0,socket={socket}\"\nip = \"192.0.2.{n}\"\n")
    };
    let config = format!("wait = 0\n[[device]]\n{}[[device]]\n{}", port(1, "client"), port(2, "server"));
    let (out, err) = again(&config, &[]);
    assert_eq!(out, "first failed 1\nsecond opened\nagain opened 0\n", "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.starts_with("spraywire verbs: spw0 cannot be opened: ") && err.contains("start the other side"),
        "{err}"
    );
}

#[test]
fn what_stands_in_the_way_of_a_device_is_said_each_time() {
    // A driver that there is not, which DPDK survives; and arguments that it does not, so that nothing but a new process helps.
    let nothing = "ip = \"192.0.2.1\"\nport = \"net_nosuch0\"\n";
    let (out, err) = again(nothing, &["only"]);
    assert_eq!(out, "first failed 1\nagain failed -1\n", "{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.contains("Check the spelling")), "{err}");
    let (out, err) = again("eal = \"--no-such-argument\"\n", &["only"]);
    // Behind what DPDK has to say of its arguments.
    assert!(out.ends_with("first failed 1\nagain failed -1\n"), "{out}{err}");
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("cannot be opened")).collect();
    assert!(lines.len() == 2 && lines[0].contains("--no-such-argument"), "{err}");
    assert!(lines[1].contains("run the program again") && lines[1].contains("--no-such-argument"), "{err}");
}

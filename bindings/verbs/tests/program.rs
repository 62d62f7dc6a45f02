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

/// The program, compiled once.
fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program");
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("verbs-program-{}", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        cc.args(["ends.c", "messages.c", "life.c"].map(|name| folder.join(name)));
        let output = cc.arg("-o").arg(&to).args(["-libverbs", "-lpthread"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        to
    })
}

fn run(case: &str) -> Output {
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
    command.args(["-k", "5", "120"]).arg(program()).arg(case);
    command.env("LD_PRELOAD", library()).env("SPRAYWIRE_CONFIG", &config).output().unwrap()
}

/// One case of the program; what it said on standard error.
fn right(case: &str) -> String {
    let output = run(case);
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

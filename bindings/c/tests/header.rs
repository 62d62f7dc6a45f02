//! The header is the one that cbindgen makes of the source, and programs in C get along with it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_up_to_date() {
    let config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_src(folder().join("src/lib.rs")).with_config(config).generate();
    let mut text = Vec::new();
    made.unwrap().write(&mut text);
    let made = String::from_utf8(text).unwrap();
    let path = folder().join("include/spraywire.h");
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if made != there {
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spraywire.h");
        std::fs::write(&new, &made).unwrap();
        panic!("{} is not what the source says; the new one is {}", path.display(), new.display());
    }
}

/// Compiles a program against header and library.
fn compile(source: &Path, to: &Path) {
    let own = std::env::current_exe().unwrap();
    let libraries = own.parent().unwrap();
    assert!(libraries.join("libspraywire.so").is_file(), "the library was not built");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]).arg(source).arg("-o").arg(to);
    cc.arg("-I").arg(folder().join("include")).arg("-L").arg(libraries).arg("-lspraywire");
    let output = cc.arg(format!("-Wl,-rpath,{}", libraries.display())).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn two_processes_in_c_greet_each_other() {
    let temporary = tempfile::tempdir().unwrap();
    let program = temporary.path().join("hello");
    compile(&folder().join("examples/hello.c"), &program);
    let start = |role: &str, args: &[&str]| {
        let port = format!("net_memif0,role={role},id=0,socket=spw-c-{}", std::process::id());
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60"]).arg(&program).arg(port).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server = start("server", &["192.0.2.1"]);
    let mut lines = BufReader::new(server.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    let qpn = first.trim().strip_prefix("queue pair ").unwrap_or_else(|| {
        let mut said = String::new();
        server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        panic!("{first:?} {said}")
    });
    let client = start("client", &["192.0.2.2", "192.0.2.1", qpn]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success(), "{said}{}", String::from_utf8_lossy(&client.stderr));
    assert!(said.ends_with("hello back from 192.0.2.1\n"), "{said}");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "hello from 192.0.2.2\n");
    assert!(server.wait().unwrap().success());
}

/// A message of a megabyte there and back.
#[test]
fn two_processes_in_c_exchange_reliable_messages() {
    let temporary = tempfile::tempdir().unwrap();
    let program = temporary.path().join("reliable");
    compile(&folder().join("examples/reliable.c"), &program);
    let start = |role: &str, args: &[&str]| {
        let port = format!("net_memif0,role={role},id=0,socket=spw-c-rel-{}", std::process::id());
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60"]).arg(&program).arg(port).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let server = start("server", &["192.0.2.1"]);
    let client = start("client", &["192.0.2.2", "192.0.2.1"]).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success(), "{said}{}", String::from_utf8_lossy(&client.stderr));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["open to 192.0.2.1", "1000000 bytes came back as they were"], "{said}");
    // 1,000,000 bytes in segments of 4008, each way.
    let figures = lines[2].strip_prefix("250 segments sent, ").unwrap_or_else(|| panic!("{said}"));
    assert!(figures.ends_with(" sent again, 250 received") && lines[3] == "gone: closed", "{said}");
    let server = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&server.stdout);
    assert!(server.status.success(), "{said}{}", String::from_utf8_lossy(&server.stderr));
    let want = "open to 192.0.2.2\n1000000 bytes\ngone: closed by the peer";
    assert!(said.contains(want), "{said}");
}

/// Each function of both services, between two endpoints of one process.
#[test]
fn two_endpoints_of_a_process_do_what_the_header_says() {
    let temporary = tempfile::tempdir().unwrap();
    let program = temporary.path().join("pair");
    compile(&folder().join("tests/pair.c"), &program);
    let socket = format!("spw-c-pair-{}", std::process::id());
    let output = Command::new("timeout").args(["-k", "5", "60"]).arg(&program).arg(socket).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{}{said}", output.status, String::from_utf8_lossy(&output.stdout));
}

/// What a program in C says whose `main` has these statements; `SAY` prints a result, and what is wrong.
fn lines_of(statements: &str) -> String {
    let temporary = tempfile::tempdir().unwrap();
    let source = temporary.path().join("errors.c");
    let head = r#"
        #include <spraywire.h>
        #include <stdio.h>
        #include <string.h>
        #define SAY(call) do { int r = (call); printf("%d %s\n", r, r < 0 ? spw_last_error() : ""); } while (0)
        int main(void)
        {"#;
    std::fs::write(&source, format!("{head}{statements}\nreturn 0; }}\n")).unwrap();
    let program = temporary.path().join("errors");
    compile(&source, &program);
    let output = Command::new("timeout").args(["60"]).arg(&program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn assert_begin(lines: &[&str], want: &[&str]) {
    assert!(lines.len() >= want.len(), "{lines:#?}");
    for (line, want) in lines.iter().zip(want) {
        assert!(line.starts_with(want), "{line:?}, not {want:?}:\n{lines:#?}");
    }
}

#[test]
fn errors_are_numbers_and_words() {
    let said = lines_of(
        r#"
            spw_endpoint_t *e = NULL;
            spw_config none = { 0 }, bad = { .port = "net_nosuch0", .addresses = "192.0.2.1" };
            spw_config ring = { .port = "net_ring0", .addresses = "192.0.2.1" };
            spw_config wrong = { .port = "net_ring1", .addresses = "x" };
            spw_config odd = { .port = "net_ring1", .addresses = "192.0.2.1", .entropy_range = "4000-5000" };
            SAY(spw_open(NULL, &e));
            SAY(spw_open(&none, &e));
            SAY(spw_open(&wrong, &e));
            SAY(spw_open(&odd, &e));
            SAY(spw_open(&ring, &e));
            uint32_t qpn;
            uint64_t ah;
            uint8_t buffer[100];
            spw_send send = { .qpn = 5 };
            spw_completion done;
            SAY(spw_max_message(e) > 0);
            SAY(spw_qp_create(e, 1, 0, 1, &qpn));
            SAY(spw_qp_create(e, 1, 1, 1, &qpn));
            SAY(spw_post_recv(e, qpn, 1, buffer, 100));
            SAY(spw_post_recv(e, qpn, 1, buffer, 100));
            SAY(spw_post_recv(e, qpn + 1, 1, buffer, 100));
            SAY(spw_post_recv(e, qpn, 1, NULL, 100));
            SAY(spw_post_send(e, &send, buffer, 1));
            SAY(spw_ah_create(e, "192.0.2.9", 10, &ah));
            SAY(spw_ah_create(e, "here", 10, &ah));
            SAY(spw_ah_destroy(e, 7));
            SAY(spw_poll(e, &done, 1));
            SAY(spw_qp_destroy(e, qpn));
            SAY(spw_qp_destroy(e, qpn));
            SAY(spw_poll(NULL, &done, 1));
            spw_close(e);
            spw_close(NULL);
            SAY(spw_open(&bad, &e));"#,
    );
    let want = [
        "-1 the configuration is NULL",
        "-1 the port is missing",
        "-1 `x` is no address",
        "-1 the range 4000-5000 contains 4791",
        "0",
        "1",
        "-1",
        "0",
        "0",
        "-3 the work queue is full",
        "-5",
        "-1",
        "-5",
        "-4 nobody answers for 192.0.2.9",
        "-1",
        "-5",
        "0",
        "0",
        "-5",
        "-1",
        "-2 ",
    ];
    let lines: Vec<&str> = said.lines().collect();
    assert_begin(&lines, &want);
    assert!(lines.last().is_some_and(|line| line.contains("net_nosuch0")), "{said}");
}

#[test]
fn errors_of_reliable_messages_are_numbers_and_words() {
    let said = lines_of(
        r#"
            spw_endpoint_t *e = NULL;
            spw_config ring = { .port = "net_ring0", .addresses = "192.0.2.1", .entropy_range = "50000-50002" };
            uint32_t qpn;
            uint8_t buffer[100];
            SAY(spw_open(&ring, &e));
            uint64_t session;
            spw_done message_done;
            spw_event event;
            spw_session_figures stats;
            spw_message message = { .session = 9 };
            spw_reliable_config odd = { .congestion = 7 }, many = { .paths = 4 };
            SAY(spw_connect(e, "192.0.2.9", 5, &session));
            SAY(spw_poll_event(e, &event));
            SAY(spw_reliable_start(e, &odd, &qpn));
            SAY(spw_reliable_start(e, &many, &qpn));
            SAY(spw_reliable_start(e, NULL, NULL));
            SAY(spw_reliable_start(e, NULL, &qpn));
            SAY(spw_reliable_start(e, NULL, &qpn));
            SAY(spw_send_message(e, &message, buffer, 1));
            SAY(spw_recv_message(e, &message, NULL, 1));
            SAY(spw_connect(e, "192.0.2.9", 5, &session));
            SAY(spw_connect(e, "192.0.2.9", 5, &session));
            message.session = session;
            SAY(spw_send_message(e, &message, buffer, 1));
            SAY(spw_poll_messages(e, &message_done, 1));
            SAY(spw_session_stats(e, session, &stats));
            SAY(spw_disconnect(e, session));
            SAY(spw_poll_messages(e, &message_done, 1));
            SAY(spw_poll_event(e, &event));
            SAY(spw_poll_event(e, &event));
            SAY(spw_session_stats(e, session, &stats));
            spw_close(e);"#,
    );
    let want = [
        "0",
        "-5 call spw_reliable_start() first",
        "-5 call spw_reliable_start() first",
        "-1 there is no congestion control 7",
        "-1 4 paths need as many UDP source ports, and there are 3",
        "-1 there is no place for the number",
        "0",
        "-5 the endpoint has its reliable service already",
        "-5 there is no session 9",
        "-1 the buffer is NULL",
        "0",
        "-5 there is a session with this peer already",
        "-3 the session is not open yet",
        "0",
        "0",
        "0",
        "0",
        "1",
        "0",
        "-5 there is no session 1",
    ];
    assert_begin(&said.lines().collect::<Vec<_>>(), &want);
}

/// What a port keeps beside the process goes with it, whether the endpoint was closed or not.
#[test]
fn the_end_of_a_process_leaves_nothing_behind() {
    for close in ["spw_close(e);", ""] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memif.sock");
        let said = lines_of(&format!(
            r#"
            spw_endpoint_t *e = NULL;
            spw_config memif = {{ .port = "net_memif0,role=server,id=0,socket={0},socket-abstract=no", .addresses = "192.0.2.1" }};
            SAY(spw_open(&memif, &e));
            FILE *sockets = fopen("/proc/net/unix", "r");
            char line[300];
            int found = 0;
            while (fgets(line, sizeof line, sockets))
                found |= strstr(line, "{0}") != NULL;
            SAY(found);
            {close}"#,
            path.display()
        ));
        assert_eq!(said, "0 \n1 \n", "{close}");
        assert!(!path.exists(), "{close}");
    }
}

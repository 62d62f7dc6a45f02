//! Where what it says goes, and what becomes of it when nobody takes it.

use super::*;

#[test]
fn an_output_that_takes_nothing_is_not_called_a_wrong_packet() {
    for args in [&["--summary"][..], &[], &["--json"]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_spraywire"));
        let full = std::fs::File::create("/dev/full").unwrap();
        command.arg("inspect").args(args).arg(&all_captures()[0]).stdout(full);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains("cannot write the output"), "{}", stderr(&output));
    }
}

#[test]
fn a_closed_output_ends_it_in_silence() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_spraywire"))
        .arg("inspect")
        .args(all_captures())
        .args(all_captures())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), stderr(&output).as_str()), (141, ""));
}

#[test]
fn json_beside_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let output =
        inspect([format!("--json={}", path.display()), capture("ud-v4-echo.pcap").display().to_string()]);
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("UD SEND_ONLY"));
    let report: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(report["summary"]["roce"]["packets"], 10);
}

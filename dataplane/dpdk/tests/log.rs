//! DPDK's log goes where the program says, from its first line on.

use std::sync::Mutex;

use dpdk::{Eal, EalConfig, HugePages, LogLevel, route_log};

static LINES: Mutex<Vec<(LogLevel, String)>> = Mutex::new(Vec::new());

fn keep(level: LogLevel, line: &str) {
    LINES.lock().unwrap().push((level, line.to_owned()));
    assert!(!line.contains("nosuch"), "a panic here must not reach DPDK");
}

#[test]
fn lines_arrive() {
    std::panic::set_hook(Box::new(|_| {}));
    route_log(keep);
    let config = EalConfig {
        hugepages: HugePages::Off,
        extra: vec!["--no-pci".into()],
        log_level: Some(LogLevel::Debug),
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let found = |level: LogLevel, part: &str| {
        LINES.lock().unwrap().iter().any(|(at, line)| *at == level && line.contains(part))
    };
    assert!(found(LogLevel::Info, "EAL: Detected CPU lcores"), "logged at the very start");
    assert!(found(LogLevel::Debug, "EAL:"));
    assert!(LINES.lock().unwrap().iter().all(|(_, line)| !line.is_empty() && !line.contains('\n')));

    assert!(eal.attach("net_nosuch0").is_err());
    let _ = std::panic::take_hook();
    assert!(found(LogLevel::Error, "net_nosuch0"));
    assert!(eal.attach("net_null0").is_ok(), "and DPDK goes on");
    eal.shutdown().unwrap();
}

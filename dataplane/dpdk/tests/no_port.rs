//! No device named: what the user is told.

use dpdk::{Eal, EalConfig, HugePages, PortError};

#[test]
fn no_port_and_bad_devices() {
    let config = EalConfig {
        hugepages: HugePages::Off,
        extra: vec!["--no-pci".into(), "--no-telemetry".into()],
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let drivers = Eal::driver_dir().map_or("the program itself".into(), |dir| dir.display().to_string());

    let error = eal.find("net_memif0").unwrap_err();
    assert_eq!(
        error,
        PortError::NoPorts {
            wanted: Some("net_memif0".into()),
            drivers: drivers.clone(),
            vdevs: "none".into()
        }
    );
    let text = error.to_string();
    assert!(
        text.contains(&drivers)
            && text.contains("asked for: none")
            && text.contains("net_memif0,role")
            && text.contains("none called \"net_memif0\""),
        "{text}"
    );

    let error = eal.attach("net_nosuch3,speed=9").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PortError::Attach { .. }), "{error:?}");
    assert!(text.contains("net_nosuch3,speed=9"), "{text}");
    assert!(text.contains(&format!("No driver called net_nosuch is in {drivers}")), "{text}");

    let error = eal.attach("net_memif0,role=neither").unwrap_err();
    let PortError::Attach { said, .. } = &error else { panic!("{error:?}") };
    assert!(said.contains("neither") || said.contains("role"), "DPDK's own words: {said}");

    let error = eal.attach("net_null0\0").unwrap_err();
    assert!(matches!(error, PortError::Attach { errno: 22, .. }), "{error:?}");

    // Both devices are listed as asked for.
    let PortError::NoPorts { vdevs, .. } = eal.find("x").unwrap_err() else { panic!("a port from nowhere") };
    assert!(vdevs.contains("net_nosuch3") && vdevs.contains("net_memif0"), "{vdevs}");
    eal.shutdown().unwrap();
}

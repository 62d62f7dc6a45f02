//! Finds DPDK through pkg-config, compiles the shim and generates the bindings.

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Oldest release that the code is written for (Debian 12 has 22.11).
const OLDEST: &str = "22.11";

const FUNCTIONS: &[&str] = &[
    "rte_eal_init",
    "rte_eal_cleanup",
    "rte_eal_has_hugepages",
    "rte_version",
    "rte_strerror",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_eal_alarm_set",
    "rte_dev_probe",
    "rte_dev_remove",
    "rte_dev_name",
    "rte_eth_find_next",
    "rte_eth_dev_count_avail",
    "rte_eth_dev_is_valid_port",
    "rte_eth_dev_get_name_by_port",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_socket_id",
    "rte_eth_dev_info_get",
    "rte_eth_dev_configure",
    "rte_eth_dev_rss_hash_conf_get",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_rx_queue_setup",
    "rte_eth_tx_queue_setup",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_dev_close",
    "rte_eth_dev_get_mtu",
    "rte_eth_dev_set_mtu",
    "rte_eth_macaddr_get",
    "rte_eth_promiscuous_enable",
    "rte_eth_promiscuous_get",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_rx_offload_name",
    "rte_eth_dev_tx_offload_name",
    "rte_telemetry_register_cmd",
    "rte_tel_data_start_dict",
    "rte_eth_stats_get",
    "rte_eth_stats_reset",
    "rte_eth_xstats_get",
    "rte_eth_xstats_get_names",
    "rte_eth_xstats_reset",
    "rte_pktmbuf_pool_create",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "spw_.*",
];

const TYPES: &[&str] = &[
    "rte_mbuf",
    "rte_mempool",
    "rte_device",
    "rte_ether_addr",
    "rte_eth_conf",
    "rte_eth_dev_info",
    "rte_eth_rss_conf",
    "rte_eth_stats",
    "rte_eth_xstat",
    "rte_eth_xstat_name",
    "spw_.*",
];

/// Bound by name only. `rte_mbuf` because of its nameless unions, markers of size zero and alignment; the others because
/// nobody looks inside them, and some are both packed and aligned, which Rust cannot express.
const OPAQUE: &[&str] = &[
    "rte_mbuf",
    "rte_mempool",
    "rte_device",
    "rte_eth_fdir_conf",
    "rte_eth_intr_conf",
    "rte_eth_vmdq_dcb_conf",
    "rte_eth_dcb_rx_conf",
    "rte_eth_vmdq_rx_conf",
    "rte_eth_conf__bindgen_ty_2",
    "rte_eth_rxseg_capa",
    "rte_eth_switch_info",
    "rte_eth_rxseg",
];

const VARIABLES: &[&str] = &[
    "SPW_.*",
    "RTE_MAX_ETHPORTS",
    "RTE_TEL_MAX_DICT_ENTRIES",
    "RTE_ETH_NAME_MAX_LEN",
    "RTE_ETHDEV_QUEUE_STAT_CNTRS",
    "RTE_VER_.*",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/shim.c");
    println!("cargo:rerun-if-changed=src/hook.c");
    println!("cargo:rerun-if-changed=src/shim.h");

    let linked_in = env::var_os("CARGO_FEATURE_STATIC").is_some();
    let dpdk = find(linked_in);
    let flags = cflags();
    compile_shim(&dpdk, &flags);
    // After the shim, so that a linker that reads archives once meets them in the order of need.
    link(&dpdk, linked_in);
    generate(&dpdk, &flags);
    // Only now: a build that stopped is run again anyway, and its message should stand alone.
    for variable in
        ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR", "LIBCLANG_PATH"]
    {
        println!("cargo:rerun-if-env-changed={variable}");
    }
}

fn find(linked_in: bool) -> pkg_config::Library {
    pkg_config::Config::new()
        .atleast_version(OLDEST)
        .statik(linked_in)
        .cargo_metadata(false)
        .env_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|error| {
            missing(&format!("DPDK {OLDEST} or newer was not found by pkg-config"), &error)
        })
}

/// `-include` and `-march` are not part of what the pkg-config crate reports.
fn cflags() -> Vec<String> {
    let tool = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    match Command::new(tool).args(["--cflags", "libdpdk"]).output() {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
        }
        Ok(output) => missing("pkg-config gave no flags for DPDK", &String::from_utf8_lossy(&output.stderr)),
        Err(error) => missing("pkg-config does not run", &error),
    }
}

fn compile_shim(dpdk: &pkg_config::Library, flags: &[String]) {
    let mut build = cc::Build::new();
    build
        .files(["src/shim.c", "src/hook.c"])
        .includes(&dpdk.include_paths)
        .warnings(true)
        .extra_warnings(false)
        .opt_level(3);
    // DPDK's inline functions need the instruction set that the library was built for. It stays in the shim: Rust code
    // keeps the target's baseline.
    let mut flags = flags.iter();
    while let Some(flag) = flags.next() {
        match flag.as_str() {
            "-include" => {
                if let Some(header) = flags.next() {
                    build.flag("-include").flag(header);
                }
            }
            flag if flag.starts_with("-m") => {
                build.flag(flag);
            }
            _ => {}
        }
    }
    if let Err(error) = build.try_compile("spw_shim") {
        missing("the C shim did not compile", &error);
    }
}

/// Prints the libraries with `rustc-link-lib`, the only kind of link instruction that reaches the final program when the
/// package is a dependency.
fn link(dpdk: &pkg_config::Library, linked_in: bool) {
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    if !linked_in {
        for library in &dpdk.libs {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
        return;
    }
    let libdir = pkg_config::get_variable("libdpdk", "libdir")
        .unwrap_or_else(|error| missing("pkg-config does not know where DPDK's libraries are", &error));
    println!("cargo:rustc-link-search=native={libdir}");
    let tool = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = match Command::new(tool).args(["--static", "--libs", "libdpdk"]).output() {
        Ok(output) => output.stdout,
        Err(error) => missing("pkg-config does not run", &error),
    };
    let mut seen = std::collections::HashSet::new();
    for word in String::from_utf8_lossy(&output).split_whitespace() {
        if !seen.insert(word.to_owned()) {
            continue;
        }
        if let Some(archive) = word.strip_prefix("-l:lib").and_then(|name| name.strip_suffix(".a")) {
            // Drivers register themselves in constructors that nobody refers to, so every object must stay.
            println!("cargo:rustc-link-lib=static:+whole-archive,-bundle={archive}");
        } else if let Some(name) = word.strip_prefix("-l") {
            let archive = Path::new(&libdir).join(format!("lib{name}.a"));
            if name.starts_with("rte_") && !archive.exists() {
                missing("static linking was asked for", &format!("{} does not exist", archive.display()));
            }
            // The archives of the libraries themselves come by the other spelling; only outside libraries are left.
            if !name.starts_with("rte_") {
                println!("cargo:rustc-link-lib=dylib={name}");
            }
        }
    }
}

fn generate(dpdk: &pkg_config::Library, flags: &[String]) {
    let mut builder = bindgen::Builder::default()
        .header("src/shim.h")
        .clang_args(dpdk.include_paths.iter().map(|path| format!("-I{}", path.display())))
        // Headers choose their intrinsics by the instruction set, so libclang must see the same one as the C compiler.
        .clang_args(flags.iter().filter(|flag| flag.starts_with("-m")))
        .clang_args(["-include", "rte_config.h"])
        .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_default())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .layout_tests(true)
        .derive_default(true)
        .derive_debug(false)
        .generate_comments(false)
        .prepend_enum_name(false)
        .allowlist_recursively(true);
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in VARIABLES {
        builder = builder.allowlist_var(name);
    }
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }
    // The unions inside an opaque mbuf would be generated all the same.
    builder = builder.blocklist_type("rte_mbuf_.*").blocklist_type("rte_mempool__.*");
    // bindgen panics if there is no libclang.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    std::panic::set_hook(hook);
    let bindings = match result {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => missing("libclang could not read DPDK's headers", &error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("bindgen panicked", String::as_str);
            missing("libclang was not found", &text)
        }
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("bindings.rs");
    if let Err(error) = bindings.write_to_file(&out) {
        missing("the bindings could not be written", &error);
    }
}

/// Ends the build with what is missing and the line that installs it; a panic would bury both in a backtrace.
fn missing(what: &str, detail: &dyn Display) -> ! {
    /// Enough to see what happened; the rest is hints for authors of build scripts.
    const DETAIL: usize = 3;
    eprintln!("\ndpdk-sys: {what}.");
    let detail = detail.to_string();
    for line in detail.lines().filter(|line| !line.trim().is_empty()).take(DETAIL) {
        eprintln!("  | {}", line.trim());
    }
    eprintln!("  needed: DPDK {OLDEST} or newer with its headers, pkg-config, a C compiler, libclang");
    eprintln!("  Debian, Ubuntu: apt install libdpdk-dev pkg-config gcc libc6-dev libclang-dev clang");
    eprintln!("  Fedora:         dnf install dpdk-devel pkgconf gcc clang-devel");
    eprintln!("  from source:    set PKG_CONFIG_PATH to the folder of libdpdk.pc");
    eprintln!("  crates that do not use DPDK build without it, for example: cargo build -p roce-proto\n");
    exit(1);
}

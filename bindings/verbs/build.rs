//! Reads the structures of the verbs from the installed headers, so that their layouts are those that programs were built with.

use std::env;
use std::path::PathBuf;
use std::process::exit;

/// Structures and constants; the functions are ours to define.
const TYPES: &[&str] = &["ibv_.*", "verbs_context"];
const VARIABLES: &[&str] = &["IBV_.*"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/verbs.h");
    println!("cargo:rerun-if-env-changed=LIBCLANG_PATH");
    let mut builder = bindgen::Builder::default()
        .header("src/verbs.h")
        .rust_target(bindgen::RustTarget::stable(85, 0).unwrap_or_default())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .layout_tests(true)
        .derive_default(true)
        .derive_debug(false)
        .generate_comments(false)
        .prepend_enum_name(false)
        .ignore_functions();
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in VARIABLES {
        builder = builder.allowlist_var(name);
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // bindgen panics if there is no libclang.
    let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    std::panic::set_hook(hook);
    let why = match made {
        Ok(Ok(bindings)) => {
            let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("verbs.rs");
            match bindings.write_to_file(&out) {
                Ok(()) => return,
                Err(e) => e.to_string(),
            }
        }
        Ok(Err(e)) => e.to_string(),
        Err(_) => "libclang was not found".to_owned(),
    };
    eprintln!("\nspraywire-verbs: no bindings to <infiniband/verbs.h>.");
    for line in why.lines().filter(|line| !line.trim().is_empty()).take(3) {
        eprintln!("  | {}", line.trim());
    }
    eprintln!("  Debian, Ubuntu: apt install libibverbs-dev libclang-dev clang\n");
    exit(1);
}

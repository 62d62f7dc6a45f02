//! The `spraywire` command. Everything is in the library, where tests reach it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    spraywire_cli::main()
}

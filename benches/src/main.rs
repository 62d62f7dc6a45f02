//! Spraywire's figures. See the crate's README for what each means.

#![forbid(unsafe_code)]

mod bare;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about = "Spraywire's figures, each interleaved with what bounds it")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One side of a bare loop
    #[command(subcommand)]
    Bare(bare::Command),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Bare(command) => bare::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spraywire-benches: {error}");
            ExitCode::FAILURE
        }
    }
}

//! `pepd`: see [`pepd::cli`] for the command line and [`pepd::exit`] for the exit codes.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use pepd::{
    cli::{Cli, Command, ConfigArgs},
    exit::ExitStatus,
    kernel::Congestion,
    load::{self, LoadError, Loaded},
    summary::Summary,
};

fn main() -> ExitCode {
    let status = match Cli::parse().command {
        Command::Check(args) => check(&args),
    };
    status.into()
}

fn check(args: &ConfigArgs) -> ExitStatus {
    let Loaded { config, warnings } = match load::load(&args.config) {
        Ok(loaded) => loaded,
        Err(err) => return refuse(&err),
    };
    for warning in &warnings {
        eprintln!("warning: {}", load::located(&args.config, warning));
    }
    let kernel = Congestion::of_kernel().ok();
    println!("{}: valid\n", args.config.display());
    print!(
        "{}",
        Summary {
            config: &config,
            kernel: kernel.as_ref()
        }
    );
    ExitStatus::Success
}

/// Prints every error on a line of its own.
fn refuse(err: &LoadError) -> ExitStatus {
    eprintln!("{err}");
    ExitStatus::Configuration
}

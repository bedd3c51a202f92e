//! `pepd`: see [`pepd::cli`] for the command line and [`pepd::exit`] for the exit codes.
#![forbid(unsafe_code)]

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser;
use pepd::{
    cli::{Cli, Command, ConfigArgs},
    exit::ExitStatus,
    kernel::{Congestion, has_rto_max},
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
    let summary = Summary {
        config: &config,
        kernel: kernel.as_ref(),
        rto_max: has_rto_max(),
    };
    print(format_args!(
        "{}: valid\n\n{summary}",
        args.config.display()
    ));
    ExitStatus::Success
}

/// Prints every error on a line of its own.
fn refuse(err: &LoadError) -> ExitStatus {
    eprintln!("{err}");
    ExitStatus::Configuration
}

/// To standard output; a reader that went away, as `head` does, is none of our concern.
fn print(text: fmt::Arguments<'_>) {
    let _ = io::stdout().lock().write_fmt(text);
}

//! `pepd`: see [`pepd::cli`] for the command line and [`pepd::exit`] for the exit codes.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser;
use pepd::{
    cli::{Cli, Command, ConfigArgs, RunArgs},
    daemon,
    exit::ExitStatus,
    kernel::{Congestion, has_rto_max},
    load::{self, LoadError, Loaded},
    log,
    summary::Summary,
};

fn main() -> ExitCode {
    let status = match Cli::parse().command {
        Command::Check(args) => check(&args),
        Command::Run(args) => run(&args),
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

fn run(args: &RunArgs) -> ExitStatus {
    let path = &args.config.config;
    let Loaded { config, warnings } = match load::load(path) {
        Ok(loaded) => loaded,
        Err(err) => return refuse(&err),
    };
    log::init(args.log(config.log), args.log_level.is_some());
    for warning in &warnings {
        tracing::warn!("{}", load::located(path, warning));
    }
    daemon::run(&config).unwrap_or_else(|err| {
        tracing::error!(error = &err as &dyn Error, "cannot go on");
        err.status()
    })
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

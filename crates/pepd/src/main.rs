//! `pepd`: see [`pepd::cli`] for the command line and [`pepd::exit`] for the exit codes.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fmt,
    io::{self, Write as _},
    iter,
    process::ExitCode,
};

use clap::Parser;
use pepd::{
    cli::{Cli, Command, ConfigArgs, RulesArgs, RunArgs},
    daemon,
    exit::ExitStatus,
    intercept,
    kernel::{Congestion, has_rto_max},
    load::{self, LoadError, Loaded},
    log,
    summary::Summary,
};

fn main() -> ExitCode {
    let status = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
        Command::Rules(args) => rules(&args),
    };
    status.into()
}

fn run(args: &RunArgs) -> ExitStatus {
    let Loaded { config, warnings } = match load::load(&args.config.config) {
        Ok(loaded) => loaded,
        Err(err) => return refuse(&err),
    };
    log::init(args.log(config.log), args.log_level.is_some());
    for warning in &warnings {
        let place = load::located(&args.config.config, &warning.line);
        tracing::warn!(place, key = warning.key, "{}", warning.message);
    }
    daemon::run(&config).unwrap_or_else(|err| {
        tracing::error!("{}", chain(&err));
        err.status()
    })
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

fn rules(args: &RulesArgs) -> ExitStatus {
    match load::load(&args.config.config) {
        Ok(loaded) => {
            let rules = intercept::render(&loaded.config, args.format.into());
            print(format_args!("{rules}"));
            ExitStatus::Success
        }
        Err(err) => refuse(&err),
    }
}

/// An error and all that led to it, in one line.
fn chain(err: &dyn Error) -> String {
    let causes = iter::successors(Some(err), |&err| err.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
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

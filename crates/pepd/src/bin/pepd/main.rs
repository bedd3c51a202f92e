//! `pepd`: see [`pepd_control::cli`] for the command line and [`pepd_api::exit`] for the exit
//! codes.
#![forbid(unsafe_code)]

use std::{path::Path, process::ExitCode};

use pep_core::config::Config;
use pepd::{
    cleanup,
    daemon::{self, DaemonError, Role},
    diagnose,
    kernel::{self, log_missing},
    summary::Summary,
    supervisor,
};
use pepd_api::exit::ExitStatus;
use pepd_control::{
    cli::{CcCommand, CheckArgs, CleanupArgs, Cli, Command, ListArgs, RulesArgs, RunArgs},
    commands::carry_out,
    output::{chain, complain, fail, print, refuse},
};
use pepd_intercept::program::runner;
use pepd_relay::survive::{inherited_text, keeper};
use pepd_sys::{
    congestion::{Catalogue, Controls, listing::Listing},
    load::{self, LoadError, Loaded, Source},
    log,
    privileges::{self, Phase},
    socket::has_rto_max,
};
use pepd_tunnel::custody;

fn main() -> ExitCode {
    let status = match Cli::of_process().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
        Command::Rules(args) => rules(&args),
        Command::Cleanup(args) => remove_leftovers(&args),
        Command::Cc(args) => match args.command {
            CcCommand::List(args) => list_controls(&args),
        },
        Command::Client(command) => carry_out(&command),
    };
    status.into()
}

fn run(args: &RunArgs) -> ExitStatus {
    if args.runner {
        return serve_programs();
    }
    let path = &args.config.config;
    let (loaded, before) = match load_or_revert(args) {
        Ok(found) => found,
        Err(err) => return refuse(&err),
    };
    log::init(args.log(loaded.config.log), args.log_level.is_some());
    if let Err(err) = privileges::leave_no_core() {
        tracing::warn!(error = %err, "core dumps cannot be disabled: a crash may leave one with keys and payload of hosts");
    }
    let loads = Controls::may_load(&loaded.config);
    if !args.worker && args.before.is_none() {
        log_missing(&loaded.config);
        if loads {
            // While this process has CAP_SYS_ADMIN: no other process of pepd does.
            bpf_cc::remove_leftovers();
        }
    }
    privileges::limit(Phase::Supervisor, loads);
    if loaded.config.custody.survive && !args.worker {
        // Before the runtime takes descriptors: its errors do not name the limit.
        if let Err(err) = daemon::raise_descriptors(&loaded.config) {
            return failed(&err);
        }
        if keepers_are_useful() {
            return supervise(loaded, before);
        }
    }
    let role = if args.worker {
        supervisor::begin_worker();
        Role::Worker {
            discards: args.discard_flows,
            again: args.again,
            heartbeat: args.heartbeat,
            hangs: args.hangs,
            reverted: args.reverted,
        }
    } else {
        Role::Alone
    };
    privileges::limit(Phase::Start, loads);
    for warning in &loaded.warnings {
        let place = load::located(path, &warning.line);
        let (key, message) = (&warning.key, &warning.message);
        tracing::warn!(place, key, "{key}: {message}");
    }
    daemon::run(&loaded.config, loaded.source, role).unwrap_or_else(|err| failed(&err))
}

/// Runs programs for a worker, which reports what fails.
fn serve_programs() -> ExitStatus {
    match runner::serve() {
        Ok(()) => ExitStatus::Success,
        Err(err) => {
            fail(format_args!(
                "pepd: cannot run programs for a worker: {err}"
            ));
            ExitStatus::Runtime
        }
    }
}

fn supervise(loaded: Loaded, before: Option<Source>) -> ExitStatus {
    supervisor::run(loaded, before).unwrap_or_else(|err| {
        tracing::error!(error = %err, "cannot start or watch the worker process: pepd ends; check its limits of memory and processes, restart it");
        ExitStatus::Runtime
    })
}

fn failed(err: &DaemonError) -> ExitStatus {
    tracing::error!("{}", chain(err));
    err.status()
}

/// Returns the configuration to run, and the one to revert to if it fails to start. That one is
/// used at once if the file has become invalid since its check.
fn load_or_revert(args: &RunArgs) -> Result<(Loaded, Option<Source>), LoadError> {
    let path = &args.config.config;
    let before = args.before.map(|number| inherited(path, number));
    let before = before.transpose()?;
    match (read(path, args.text).and_then(kernel::load), before) {
        (Ok(loaded), before) => Ok((loaded, before)),
        (Err(err), Some(before)) => {
            refuse(&err);
            Ok((kernel::load(before)?, None))
        }
        (Err(err), None) => Err(err),
    }
}

/// Returns the configuration text from another process, or the present file.
fn read(path: &Path, text: Option<i32>) -> Result<Source, LoadError> {
    text.map_or_else(|| load::read(path), |number| inherited(path, number))
}

fn inherited(path: &Path, number: i32) -> Result<Source, LoadError> {
    let text =
        inherited_text::take(number).map_err(|err| LoadError::Unreadable(path.to_owned(), err))?;
    Ok(Source {
        path: path.to_owned(),
        text,
    })
}

fn keepers_are_useful() -> bool {
    let useful = keeper::are_useful();
    if let Err(err) = &useful {
        tracing::warn!("{err}");
    }
    useful.is_ok()
}

fn check(args: &CheckArgs) -> ExitStatus {
    let path = &args.config.config;
    let check = if args.no_kernel {
        Source::load_alone
    } else {
        kernel::load
    };
    match read(path, args.text).and_then(check) {
        Ok(loaded) => sum_up(args, &loaded),
        Err(err) => refuse(&err),
    }
}

fn sum_up(args: &CheckArgs, loaded: &Loaded) -> ExitStatus {
    let (path, no_kernel) = (args.config.config.as_path(), args.no_kernel);
    for warning in &loaded.warnings {
        complain(format_args!("warning: {}", load::located(path, warning)));
    }
    for note in &loaded.notes {
        complain(format_args!("note: {}", load::located(path, note)));
    }
    let catalogue = if no_kernel {
        None
    } else {
        Catalogue::of_machine().ok()
    };
    let summary = Summary {
        config: &loaded.config,
        catalogue: catalogue.as_ref(),
        rto_max: no_kernel || has_rto_max(),
        survives: (!no_kernel).then(|| keeper::are_useful().is_ok()),
        directory: directory_state(&loaded.config).filter(|_| !no_kernel),
    };
    let findings = args.looks().then(|| {
        let (config, catalogue) = (&loaded.config, catalogue.as_ref());
        diagnose::diagnose(config, catalogue, args.watch)
    });
    let mut findings = findings.unwrap_or_default();
    if args.quiet {
        findings.only_amiss();
    }
    let printed = if args.json {
        let report = diagnose::Report::new(loaded, &findings);
        print(format_args!("{report}\n"))
    } else if args.quiet {
        print(format_args!("{findings}"))
    } else {
        let gap = if findings.is_empty() { "" } else { "\n" };
        let path = path.display();
        print(format_args!("{path}: valid\n\n{findings}{gap}{summary}"))
    };
    if args.strict && findings.fails() && printed == ExitStatus::Success {
        return ExitStatus::Amiss;
    }
    printed
}

/// Reports an unusable directory as an error.
fn directory_state(config: &Config) -> Option<String> {
    let custody = &config.custody;
    let look = custody::inspect(custody.directory.as_ref()?, custody.disk_bytes());
    look.ok().map(|look| look.state)
}

/// Prints the rules, which do not depend on the kernel's features.
fn rules(args: &RulesArgs) -> ExitStatus {
    match load::read(&args.config.config).and_then(Source::load_alone) {
        Ok(Loaded { config, .. }) => {
            let rules = pepd_intercept::render(&config, args.format.into());
            print(format_args!("{rules}"))
        }
        Err(err) => refuse(&err),
    }
}

fn remove_leftovers(args: &CleanupArgs) -> ExitStatus {
    let path = &args.config.config;
    let config = match load::read(path).and_then(Source::load_alone) {
        Ok(loaded) => loaded.config,
        Err(err) if err.is_missing() => {
            let path = path.display();
            complain(format_args!(
                "note: {path} not found: looking for leftovers of a pepd with default settings"
            ));
            cleanup::defaults()
        }
        Err(err) => return refuse(&err),
    };
    let removed = match args.lift {
        true => cleanup::lift(&config),
        false => cleanup::run(&config),
    };
    match removed {
        Ok(leftovers) => print(format_args!("{leftovers}")),
        Err(err) => {
            fail(format_args!("pepd: {}", chain(&err)));
            ExitStatus::Setup
        }
    }
}

fn list_controls(args: &ListArgs) -> ExitStatus {
    let listing = match Catalogue::of_machine() {
        Ok(catalogue) => Listing::from_catalogue(&catalogue),
        Err(err) => {
            fail(format_args!(
                "pepd: cannot read the kernel's congestion controls: {err}"
            ));
            return ExitStatus::Runtime;
        }
    };
    if args.json {
        let json = serde_json::to_string_pretty(&listing).expect("names and words");
        print(format_args!("{json}\n"))
    } else {
        print(format_args!("{listing}"))
    }
}

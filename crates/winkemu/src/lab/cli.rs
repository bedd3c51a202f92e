//! `winkemu lab`.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use clap::Args;
use signal_hook::{consts::signal, iterator::Signals};

use super::{
    report::Results,
    run::{Campaign, Progress, RunError, RunOptions, remove_scratch, select},
    scenario::Scenario,
};
use crate::{netns, write_stdout};

const EXAMPLES: &str = "\
Examples:
  winkemu lab scenarios/demo.toml
  winkemu lab scenarios/geo.toml --json geo.json --plots plots --jobs 8
  winkemu lab scenarios/geo.toml --only 'pepd with bbr' --only 'loss 1%' --once
  winkemu lab scenarios/geo.toml --list

The pepd binary is $PEPD_BIN, or pepd beside this program, or pepd in the PATH.

Exit codes:
  0  every run succeeded and every check of the scenario holds
  1  a run failed or a check is broken
  2  the command line or the scenario is invalid
  3  the machine was too busy: runs are missing, or a check is broken and programs lacked CPU time
  4  this system lacks a permission or a feature that the lab needs
  128 + n  after signal n (130 for Ctrl-C); finished runs are reported, and nothing is left running";

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const BUSY: u8 = 3;
const FORBIDDEN: u8 = 4;
/// Base of the exit codes for signals, as in shells: 128 plus the signal's number.
const SIGNAL_BASE: i32 = 128;

/// Set once a signal ends this process.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Options of `winkemu lab`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct LabArgs {
    /// Scenario file (TOML; see docs/lab.md)
    pub scenario: PathBuf,
    /// Write all results of all runs to this JSON file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write plots (SVG and PNG) to this directory
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Number of topologies that run at once, instead of the scenario's `parallel`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,
    /// Run only what has this text in its description (see --list); if repeated, all texts must
    /// match
    #[arg(long, value_name = "WORDS")]
    pub only: Vec<String>,
    /// Run only the first seed
    #[arg(long)]
    pub once: bool,
    /// Print one table of the times of transfers and a sentence per variant, and draw one plot
    #[arg(long)]
    pub brief: bool,
    /// Show no progress on standard error
    #[arg(long)]
    pub quiet: bool,
    /// Print the descriptions of all runs and exit
    #[arg(long)]
    pub list: bool,
}

/// Runs a scenario by the options of the command line.
///
/// Call it before the process has started threads: without root it moves into a user namespace.
pub fn main(args: &LabArgs) -> ExitCode {
    match try_main(args) {
        Ok(code) => ExitCode::from(code),
        Err((code, text)) => {
            eprintln!("winkemu: {text}");
            ExitCode::from(code)
        }
    }
}

fn try_main(args: &LabArgs) -> Result<u8, (u8, String)> {
    let scenario = Scenario::load(&args.scenario).map_err(|err| (USAGE, err.to_string()))?;
    let options = RunOptions {
        jobs: args.jobs.map(usize::from),
        only: args.only.clone(),
        once: args.once,
    };
    let runs = select(&scenario, &options).map_err(|err| (USAGE, err.to_string()))?;
    if args.list {
        let lines = runs.iter().map(|run| scenario.describe(run) + "\n");
        print(&lines.collect::<String>()).map_err(|text| (FAILED, text))?;
        return Ok(0);
    }
    if args.brief && !scenario.has_times() {
        let message = "--brief shows the times of transfers: the scenario needs a workload with \
                       the program curl, page, counting_tcp or command";
        return Err((USAGE, message.to_owned()));
    }
    let forbidden = |err: netns::PrivilegeError| (FORBIDDEN, err.to_string());
    netns::ensure_privileges().map_err(forbidden)?;
    if !scenario.links.is_empty() {
        netns::check_tun().map_err(forbidden)?;
    }
    let campaign = Campaign::new(&scenario, &args.scenario, &options);
    let campaign = Arc::new(campaign.map_err(|err| (USAGE, err.to_string()))?);
    end_cleanly_on_signals(args, &campaign)
        .map_err(|err| (FAILED, format!("cannot watch signals: {err}")))?;
    if args.brief {
        print(&introduction(&scenario)).map_err(|text| (FAILED, text))?;
    }
    let progress = if args.quiet {
        Progress::silent()
    } else {
        Progress::on_stderr(args.brief)
    };
    let results = campaign.run(&progress);
    // The thread that watches signals reports the results and ends this process.
    while ENDING.load(SeqCst) {
        thread::park();
    }
    let results = results.map_err(|err| match &err {
        RunError::Controls(_) => (FORBIDDEN, err.to_string()),
        _ => (FAILED, err.to_string()),
    })?;
    report(args, &results).map_err(|text| (FAILED, text))?;
    Ok(exit_code(&results))
}

/// Title and description of a scenario, above its brief results.
fn introduction(scenario: &Scenario) -> String {
    let (title, description) = (&scenario.title, scenario.description.trim_end());
    let separator = if description.is_empty() { "" } else { "\n" };
    format!("{title}\n{separator}{description}{separator}\n")
}

/// Writes the files, then prints the results. Files come first, so that they survive a closed
/// terminal or a full disk.
fn report(args: &LabArgs, results: &Results) -> Result<(), String> {
    if let Some(path) = &args.json {
        results.write_json(path).map_err(|err| err.to_string())?;
    }
    let mut plots = Vec::new();
    if let Some(directory) = &args.plots {
        let written = if args.brief {
            results.write_brief_plot(directory)
        } else {
            results.write_plots(directory)
        };
        plots = written.map_err(|err| err.to_string())?;
    }
    if !args.brief {
        return print(&(results.to_text() + "\n"));
    }
    let files = plots.iter().chain(&args.json);
    let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
    let mut text = results.to_brief_text() + "\n";
    if !files.is_empty() {
        text += &format!("Written: {}\n", files.join(", "));
    }
    print(&text)
}

/// Prints a text to standard output.
fn print(text: &str) -> Result<(), String> {
    let failed = |err| format!("cannot write to standard output: {err}");
    write_stdout(text).map_err(failed)
}

fn exit_code(results: &Results) -> u8 {
    if results.failed() > 0 {
        FAILED
    } else if results.late() > 0 {
        BUSY
    } else if results.checks_hold() {
        0
    } else if results.starved() > 0 {
        BUSY
    } else {
        FAILED
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP on a thread, then kills all programs, reports finished runs
/// and removes files.
///
/// Namespaces and TUN devices belong to this process alone and end with it.
fn end_cleanly_on_signals(args: &LabArgs, campaign: &Arc<Campaign>) -> std::io::Result<()> {
    let mut signals = Signals::new([signal::SIGINT, signal::SIGTERM, signal::SIGHUP])?;
    let (args, campaign) = (args.clone(), Arc::clone(campaign));
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            ENDING.store(true, SeqCst);
            campaign.interrupt();
            netns::kill_all();
            remove_scratch();
            let results = campaign.results();
            if results.finished() > 0
                && let Err(text) = report(&args, &results)
            {
                eprintln!("winkemu: {text}");
            }
            eprintln!("winkemu: ended by a signal; nothing is left running");
            std::process::exit(SIGNAL_BASE + signal);
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map(drop)
}

//! `pepd`: see [`pepd::cli`] for the command line and [`pepd::exit`] for the exit codes.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fmt, fs,
    io::{self, Read as _, Write as _},
    iter,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use clap::{Parser, ValueEnum as _};
use hyper::Method;
use pep_core::config::Config;
use pepd::{
    admin::{
        self, LinkOrder,
        client::{self, AskError},
        custody::CustodyReport,
    },
    change::{self, DrainOrder, DrainReport, ReloadOrder, ReloadReport},
    cleanup,
    cli::{
        AdminArgs, CcCommand, CheckArgs, CleanupArgs, Cli, Command, CustodyArgs, DrainArgs,
        FlowsArgs, KeygenArgs, LinkArgs, LinkWord, ListArgs, MigrateArgs, ReloadArgs, RulesArgs,
        RunArgs, SiteArgs, SiteCommand, SocketArgs, TopArgs,
    },
    congestion::{Catalogue, listing::Listing},
    custody,
    daemon::{self, DaemonError, Role},
    diagnose,
    exit::ExitStatus,
    intercept,
    kernel::has_rto_max,
    keys,
    load::{self, LoadError, Loaded, Source},
    log,
    migrate::{Draft, options, rules},
    observe::{flows::FlowsReport, status::Status},
    outage::LinkReport,
    summary::Summary,
    survive::{handed, keeper, supervisor},
    switches::{SiteList, SiteOrder},
    top,
};
use serde::de::DeserializeOwned;

fn main() -> ExitCode {
    let status = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Check(args) => check(&args),
        Command::Rules(args) => rules(&args),
        Command::Cleanup(args) => remove_leftovers(&args),
        Command::Cc(args) => match args.command {
            CcCommand::List(args) => list_controls(&args),
        },
        Command::Link(args) => asking(link(&args)),
        Command::Status(args) => asking(show::<Status>(
            &args,
            Method::GET,
            "/v1/status",
            String::new(),
        )),
        Command::Top(args) => asking(top(&args)),
        Command::Flows(args) => asking(flows(&args)),
        Command::Custody(args) => asking(custody(&args)),
        Command::Reload(args) => asking(reload(&args)),
        Command::Site(args) => asking(site(&args)),
        Command::Drain(args) => asking(drain(&args)),
        Command::Keygen(args) => asking(keygen(&args)),
        Command::Migrate(args) => asking(migrate(&args)),
    };
    status.into()
}

fn run(args: &RunArgs) -> ExitStatus {
    let path = &args.config.config;
    let (loaded, before) = match load_or_revert(args) {
        Ok(found) => found,
        Err(err) => return refuse(&err),
    };
    log::init(args.log(loaded.config.log), args.log_level.is_some());
    if let Err(err) = daemon::leave_no_core() {
        tracing::warn!(error = %err, "a crash may leave a core dump, with keys and what hosts send in it");
    }
    if loaded.config.custody.survive && !args.worker {
        // Before those that run pepd take some, and do not say what is missing.
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
            pulse: args.pulse,
            hangs: args.hangs,
            reverted: args.reverted,
        }
    } else {
        Role::Alone
    };
    for warning in &loaded.warnings {
        let place = load::located(path, &warning.line);
        tracing::warn!(place, key = warning.key, "{}", warning.message);
    }
    daemon::run(&loaded.config, loaded.source, role).unwrap_or_else(|err| failed(&err))
}

fn supervise(loaded: Loaded, before: Option<Source>) -> ExitStatus {
    supervisor::run(loaded, before).unwrap_or_else(|err| {
        tracing::error!(error = %err, "cannot start, or watch, the process that carries flows");
        ExitStatus::Runtime
    })
}

fn failed(err: &DaemonError) -> ExitStatus {
    tracing::error!("{}", chain(err));
    err.status()
}

/// The configuration to run, and the one to go back to should it not come up, which it is already where this one has become
/// wrong since it was checked.
fn load_or_revert(args: &RunArgs) -> Result<(Loaded, Option<Source>), LoadError> {
    let path = &args.config.config;
    let before = args.before.map(|number| handed(path, number));
    let before = before.transpose()?;
    match (read(path, args.text).and_then(Source::load), before) {
        (Ok(loaded), before) => Ok((loaded, before)),
        (Err(err), Some(before)) => {
            refuse(&err);
            Ok((before.load()?, None))
        }
        (Err(err), None) => Err(err),
    }
}

/// What another process has read there, or what is there now.
fn read(path: &Path, text: Option<i32>) -> Result<Source, LoadError> {
    text.map_or_else(|| load::read(path), |number| handed(path, number))
}

fn handed(path: &Path, number: i32) -> Result<Source, LoadError> {
    let text = handed::take(number).map_err(|err| LoadError::Unreadable(path.to_owned(), err))?;
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
        Source::load
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
        folder: folder_state(&loaded.config).filter(|_| !no_kernel),
    };
    let findings = args.looks().then(|| {
        let (config, catalogue) = (&loaded.config, catalogue.as_ref());
        diagnose::look(config, catalogue, args.watch)
    });
    let findings = findings.unwrap_or_default();
    let printed = if args.json {
        let report = diagnose::Report::new(loaded, &findings);
        print(format_args!("{report}\n"))
    } else if findings.is_empty() {
        print(format_args!("{}: valid\n\n{summary}", path.display()))
    } else {
        print(format_args!(
            "{}: valid\n\n{summary}{findings}",
            path.display()
        ))
    };
    if args.strict && findings.fails() && printed == ExitStatus::Success {
        return ExitStatus::Amiss;
    }
    printed
}

/// Of one that could not be used is told as an error.
fn folder_state(config: &Config) -> Option<String> {
    let custody = &config.custody;
    let look = custody::look(custody.folder.as_ref()?, custody.disk_bytes());
    look.ok().map(|look| look.state)
}

/// What the kernel can do makes no difference to what the rules would be.
fn rules(args: &RulesArgs) -> ExitStatus {
    match load::read(&args.config.config).and_then(Source::load_alone) {
        Ok(Loaded { config, .. }) => {
            let rules = intercept::render(&config, args.format.into());
            print(format_args!("{rules}"))
        }
        Err(err) => refuse(&err),
    }
}

fn remove_leftovers(args: &CleanupArgs) -> ExitStatus {
    let loaded = match load::read(&args.config.config).and_then(Source::load_alone) {
        Ok(loaded) => loaded,
        Err(err) => return refuse(&err),
    };
    match cleanup::run(&loaded.config) {
        Ok(leftovers) => print(format_args!("{leftovers}")),
        Err(err) => {
            complain(format_args!("pepd: {}", chain(&err)));
            ExitStatus::Setup
        }
    }
}

fn list_controls(args: &ListArgs) -> ExitStatus {
    let listing = match Catalogue::of_machine() {
        Ok(catalogue) => Listing::of(&catalogue),
        Err(err) => {
            complain(format_args!(
                "pepd: cannot ask the kernel for its congestion controls: {err}"
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

fn asking(status: Result<ExitStatus, Box<dyn Error>>) -> ExitStatus {
    status.unwrap_or_else(|err| {
        if let Some(err) = err.downcast_ref::<LoadError>() {
            return refuse(err);
        }
        if let Some(AskError::Wrong(why)) = err.downcast_ref() {
            complain(format_args!("{why}"));
            return ExitStatus::Configuration;
        }
        complain(format_args!("pepd: {err}"));
        ExitStatus::Runtime
    })
}

fn link(args: &LinkArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let order = args.state.order().map(|state| LinkOrder {
        state,
        for_s: args.lasting.map(|lasting| lasting.as_secs_f64()),
    });
    if args.lasting.is_some() && !matches!(args.state, LinkWord::Up | LinkWord::Down) {
        return Err("--for goes with `up` and `down` only".into());
    }
    if let Some(lasting) = args.lasting
        && (lasting.is_zero() || lasting > admin::ORDER_MAX)
    {
        let lasting = units::duration::format(lasting);
        let most = units::duration::format(admin::ORDER_MAX);
        let message = format!(
            "--for {lasting}: expected more than 0, and at most {most}; without --for an order holds until `pepd link auto` takes \
             it back"
        );
        return Err(message.into());
    }
    let (method, body) = match order {
        Some(order) => (Method::PUT, serde_json::to_string(&order)?),
        None => (Method::GET, String::new()),
    };
    show::<LinkReport>(&args.admin, method, "/v1/link", body)
}

fn top(args: &TopArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_at(&args.which)?;
    if args.once {
        let frame = top::once(&socket)?;
        return Ok(print(format_args!("{frame}")));
    }
    top::run(&socket, args.interval)?;
    Ok(ExitStatus::Success)
}

fn flows(args: &FlowsArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let word = args.sort.to_possible_value();
    let word = word.ok_or("nothing to sort by")?;
    let site = args.site.iter().map(|site| format!("&site={site}"));
    let (limit, site) = (args.limit, site.collect::<String>());
    let target = format!("/v1/flows?limit={limit}&sort={}{site}", word.get_name());
    show::<FlowsReport>(&args.admin, Method::GET, &target, String::new())
}

fn custody(args: &CustodyArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let site = args.site.iter().map(|site| format!("?site={site}"));
    let target = format!("/v1/custody{}", site.collect::<String>());
    show::<CustodyReport>(&args.admin, Method::GET, &target, String::new())
}

/// Asks a running pepd, and shows its answer.
fn show<T: DeserializeOwned + fmt::Display>(
    args: &AdminArgs,
    method: Method,
    target: &str,
    body: String,
) -> Result<ExitStatus, Box<dyn Error>> {
    let answer = client::ask(&socket_of(args)?, method, target, body)?;
    if args.json {
        return Ok(print(format_args!(
            "{}\n",
            String::from_utf8_lossy(&answer)
        )));
    }
    let report: T = serde_json::from_slice(&answer)?;
    Ok(print(format_args!("{report}")))
}

/// Where the pepd that is meant answers.
fn socket_of(args: &AdminArgs) -> Result<PathBuf, Box<dyn Error>> {
    socket_at(&args.which)
}

fn socket_at(args: &SocketArgs) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(socket) = &args.socket {
        return Ok(socket.clone());
    }
    let loaded = load::read(&args.config.config)?.load_alone()?;
    let socket = admin::socket_path(&loaded.config);
    Ok(socket.ok_or("the configuration has no admin socket (`admin.socket = \"off\"`)")?)
}

/// Returns once the next process answers.
fn reload(args: &ReloadArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.admin)?;
    let order = serde_json::to_string(&ReloadOrder {
        dry_run: args.dry_run,
        reset_flows: args.reset_flows,
    })?;
    let answer = client::ask(&socket, Method::PUT, "/v1/reload", order)?;
    let report: ReloadReport = serde_json::from_slice(&answer)?;
    let printed = if args.admin.json {
        print(format_args!("{}\n", String::from_utf8_lossy(&answer)))
    } else {
        print(format_args!("{report}"))
    };
    if !report.hands_over {
        return Ok(printed);
    }
    change::wait_for_next(&socket, &report)?;
    if !args.admin.json {
        print(format_args!("done: another process has taken over\n"));
    }
    Ok(printed)
}

fn site(args: &SiteArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let (named, enabled) = match &args.what {
        None => return list_sites(&args.admin),
        Some(SiteCommand::List(admin)) => return list_sites(admin),
        Some(SiteCommand::On(named)) => (named, true),
        Some(SiteCommand::Off(named)) => (named, false),
    };
    let site = named.name.clone();
    let order = serde_json::to_string(&SiteOrder { site, enabled })?;
    show::<SiteOrder>(&named.admin, Method::PUT, "/v1/sites", order)
}

fn list_sites(args: &AdminArgs) -> Result<ExitStatus, Box<dyn Error>> {
    show::<SiteList>(args, Method::GET, "/v1/sites", String::new())
}

/// Returns once pepd has ended.
fn drain(args: &DrainArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.admin)?;
    let timeout_s = args.timeout.map(|timeout| timeout.as_secs_f64());
    let order = serde_json::to_string(&DrainOrder { timeout_s })?;
    let since = Instant::now();
    let answer = client::ask(&socket, Method::PUT, "/v1/drain", order)?;
    let report: DrainReport = serde_json::from_slice(&answer)?;
    let json = args.admin.json;
    if json {
        print(format_args!("{}\n", String::from_utf8_lossy(&answer)));
    } else {
        print(format_args!("{report}"));
    }
    let left = change::wait_for_end(&socket, &report, since, |flows| {
        if !json {
            print(format_args!("{flows} flows\n"));
        }
    })?;
    if left == 0 {
        return Ok(ExitStatus::Success);
    }
    complain(format_args!(
        "the time was over, and {left} flows were reset"
    ));
    Ok(ExitStatus::FlowsReset)
}

/// Makes keys, or shows the public one of a private one.
fn keygen(args: &KeygenArgs) -> Result<ExitStatus, Box<dyn Error>> {
    if let Some(path) = &args.public {
        let public = keys::public_key(&keys::read(path)?);
        return Ok(print(format_args!("{public}\n")));
    }
    let path = args.psk.as_ref().unwrap_or(&args.out);
    let key = keys::generate()?;
    keys::write(path, &key, args.force)?;
    if args.psk.is_some() {
        return Ok(ExitStatus::Success);
    }
    Ok(print(format_args!("{}\n", keys::public_key(&key))))
}

/// Where PEPsal's packages keep settings.
const PEPSAL_SETTINGS: [&str; 2] = ["/etc/pepsal/pepsal.conf", "/etc/default/pepsal"];

fn migrate(args: &MigrateArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let mut draft = Draft {
        lan: args.lan.iter().cloned().collect(),
        link: args.link.clone(),
        rate: args.rate.clone(),
        rtt: args.rtt.clone(),
        ..Draft::default()
    };
    for path in &args.settings {
        options::variables(&text_of(path)?, &mut draft);
    }
    if args.settings.is_empty() && args.command.is_none() {
        let usual = PEPSAL_SETTINGS.iter().map(Path::new);
        for path in usual.filter(|path| path.exists()) {
            complain(format_args!("note: takes over {}", path.display()));
            options::variables(&text_of(path)?, &mut draft);
        }
    }
    if let Some(command) = &args.command {
        options::command_line(command, &mut draft)?;
    }
    if let Some(path) = &args.rules {
        rules::rules(&text_of(path)?, &mut draft);
    }
    Ok(print(format_args!("{}", draft.to_toml()?)))
}

/// No settings and no rules are longer.
const TEXT_MAX: u64 = 16 << 20;

fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin().take(TEXT_MAX).read_to_string(&mut text)
    } else {
        let file = fs::File::open(path);
        file.and_then(|file| file.take(TEXT_MAX).read_to_string(&mut text))
    };
    match read {
        Ok(length) if length as u64 == TEXT_MAX => {
            let most = units::ByteSize(TEXT_MAX);
            Err(format!("{}: is longer than {most}", path.display()))
        }
        Ok(_) => Ok(text),
        Err(err) => Err(format!("{}: {err}", path.display())),
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
    complain(format_args!("{err}"));
    ExitStatus::Configuration
}

/// To standard error; where that cannot be written to, nobody can be told.
fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// To standard output; a reader that went away, as `head` does, is none of our concern.
fn print(text: fmt::Arguments<'_>) -> ExitStatus {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(err) if err.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("pepd: cannot write to standard output: {err}"));
            ExitStatus::Runtime
        }
        _ => ExitStatus::Success,
    }
}

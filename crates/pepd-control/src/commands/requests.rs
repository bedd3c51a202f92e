//! Commands with one request to a running pepd.

use std::{
    error::Error,
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use clap::ValueEnum as _;
use hyper::Method;
use pepd_api::{
    change::{DrainOrder, DrainReport, ReloadOrder, ReloadReport},
    custody::CustodyReport,
    exit::ExitStatus,
    flows::FlowsReport,
    link::{LinkOrder, LinkReport, ORDER_MAX},
    probe::{Event, ProbeOrder},
    sites::{SiteList, SiteOrder},
    status::Status,
};
use pepd_sys::{
    admin_socket,
    load::{self},
};
use serde::de::DeserializeOwned;
use units::ByteSize;
use units::counted;

use crate::{
    cli::{
        AdminArgs, CONFIG, CustodyArgs, DrainArgs, FlowsArgs, LinkArgs, LinkWord, ProbeArgs,
        ReloadArgs, SiteArgs, SiteCommand, SocketArgs, TopArgs,
    },
    client::{self, Followed},
    output::{complain, print},
    top, waiting,
};

/// Runs `pepd status`.
pub(super) fn status(args: &AdminArgs) -> Result<ExitStatus, Box<dyn Error>> {
    show::<Status>(args, Method::GET, "/v1/status", String::new())
}

pub(super) fn link(args: &LinkArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let order = args.state.order().map(|state| LinkOrder {
        state,
        for_s: args.lasting.map(|lasting| lasting.as_secs_f64()),
    });
    if args.lasting.is_some() && !matches!(args.state, LinkWord::Up | LinkWord::Down) {
        return Err("--for requires `up` or `down`".into());
    }
    if let Some(lasting) = args.lasting
        && (lasting.is_zero() || lasting > ORDER_MAX)
    {
        let lasting = units::duration::format(lasting);
        let most = units::duration::format(ORDER_MAX);
        let message = format!(
            "--for {lasting}: expected more than 0, and at most {most}; without --for the state holds \
             until `pepd link auto`"
        );
        return Err(message.into());
    }
    let (method, body) = match order {
        Some(order) => (Method::PUT, serde_json::to_string(&order)?),
        None => (Method::GET, String::new()),
    };
    show::<LinkReport>(&args.admin, method, "/v1/link", body)
}

pub(super) fn top(args: &TopArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.which)?;
    if args.once {
        let frame = top::once(&socket)?;
        return Ok(print(format_args!("{frame}")));
    }
    top::run(&socket, args.interval)?;
    Ok(ExitStatus::Success)
}

pub(super) fn flows(args: &FlowsArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let word = args.sort.to_possible_value();
    let word = word.ok_or("nothing to sort by")?;
    let site = args.site.iter().map(|site| format!("&site={site}"));
    let (limit, site) = (args.limit, site.collect::<String>());
    let target = format!("/v1/flows?limit={limit}&sort={}{site}", word.get_name());
    show::<FlowsReport>(&args.admin, Method::GET, &target, String::new())
}

/// Runs `pepd probe`: progress goes to standard error, the report to standard output.
pub(super) fn probe(args: &ProbeArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.admin.which)?;
    let order = serde_json::to_string(&ProbeOrder {
        peer: args.peer.clone(),
        for_s: args.lasting.as_secs_f64(),
        bytes: args.bytes,
        load: args.load.into(),
    })?;
    let (mut begun, mut outcome) = (false, None);
    let request = (Method::POST, "/v1/probe", order);
    let followed = client::follow(&socket, request, None, |data| {
        match serde_json::from_str(data) {
            Ok(Event::Progress(_)) if args.admin.json => {}
            Ok(Event::Progress(progress)) => {
                if !std::mem::replace(&mut begun, true) {
                    announce(args);
                }
                complain(format_args!("{progress}"));
            }
            Ok(Event::Report(report)) => outcome = Some(Ok(report)),
            Ok(Event::Failed(why)) => outcome = Some(Err(why.into())),
            Err(err) => outcome = Some(Err(Box::<dyn Error>::from(err))),
        }
        outcome.is_none()
    })?;
    let cut = match followed {
        Followed::Interrupted => "interrupted: the probe has ended",
        _ => "probe aborted: pepd has ended, or another process has taken over",
    };
    let report = outcome.unwrap_or_else(|| Err(cut.into()))?;
    if args.admin.json {
        return Ok(print(format_args!("{}\n", serde_json::to_string(&report)?)));
    }
    Ok(print(format_args!("\n{report}")))
}

/// Prints the cost of the probe, once the peer has answered.
fn announce(args: &ProbeArgs) {
    complain(format_args!(
        "{}: up to {} each way, and {} of load together at most; retransmissions and headers come on top; Ctrl-C ends it",
        args.peer,
        units::duration::format(args.lasting),
        ByteSize(args.bytes),
    ));
}

pub(super) fn custody(args: &CustodyArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let site = args.site.iter().map(|site| format!("?site={site}"));
    let target = format!("/v1/custody{}", site.collect::<String>());
    show::<CustodyReport>(&args.admin, Method::GET, &target, String::new())
}

/// Sends a request to a running pepd and prints its response.
fn show<T: DeserializeOwned + fmt::Display>(
    args: &AdminArgs,
    method: Method,
    target: &str,
    body: String,
) -> Result<ExitStatus, Box<dyn Error>> {
    answer::<T>(args, method, target, body).map(|(_, printed)| printed)
}

/// Sends a request, prints the response and returns it.
fn answer<T: DeserializeOwned + fmt::Display>(
    args: &AdminArgs,
    method: Method,
    target: &str,
    body: String,
) -> Result<(T, ExitStatus), Box<dyn Error>> {
    let answer = client::ask(&socket_of(&args.which)?, method, target, body)?;
    let report: T = serde_json::from_slice(&answer)?;
    let printed = if args.json {
        print(format_args!("{}\n", String::from_utf8_lossy(&answer)))
    } else {
        print(format_args!("{report}"))
    };
    Ok((report, printed))
}

/// Returns the admin socket of the selected pepd.
pub(super) fn socket_of(args: &SocketArgs) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(socket) = &args.socket {
        return Ok(socket.clone());
    }
    if let Some(config) = &args.config {
        return socket_of_config(config);
    }
    let usual = Path::new(CONFIG);
    let configured = usual.exists().then(|| socket_of_config(usual));
    let socket = configured.as_ref().and_then(|found| found.as_deref().ok());
    let answering = admin_socket::answering(socket);
    match configured {
        // If no other pepd answers, the error in the default configuration is the cause.
        Some(Err(err)) if answering.is_empty() => Err(err),
        configured => Ok(admin_socket::choose(
            configured.and_then(Result::ok),
            answering,
        )?),
    }
}

fn socket_of_config(path: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let loaded = load::read(path)?.load_alone()?;
    let socket = admin_socket::path(&loaded.config);
    Ok(socket.ok_or("the configuration has no admin socket (`admin.socket = \"off\"`)")?)
}

/// Runs `pepd reload`. Returns when the next process answers.
pub(super) fn reload(args: &ReloadArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.admin.which)?;
    let order = serde_json::to_string(&ReloadOrder {
        dry_run: args.dry_run,
        reset_flows: args.reset_flows,
    })?;
    let (report, printed) = answer::<ReloadReport>(&args.admin, Method::PUT, "/v1/reload", order)?;
    if !args.admin.json {
        let remarks = report.remarks.iter();
        remarks.for_each(|remark| complain(format_args!("{remark}")));
    }
    if !report.hands_over {
        return Ok(printed);
    }
    waiting::wait_for_next(&socket, &report)?;
    if !args.admin.json {
        print(format_args!(
            "done: the new worker process has taken over all flows\n"
        ));
    }
    Ok(printed)
}

pub(super) fn site(args: &SiteArgs) -> Result<ExitStatus, Box<dyn Error>> {
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

/// Runs `pepd drain`. Returns when pepd has ended.
pub(super) fn drain(args: &DrainArgs) -> Result<ExitStatus, Box<dyn Error>> {
    let socket = socket_of(&args.admin.which)?;
    let timeout_s = args.timeout.map(|timeout| timeout.as_secs_f64());
    let order = serde_json::to_string(&DrainOrder { timeout_s })?;
    let since = Instant::now();
    let (report, _) = answer::<DrainReport>(&args.admin, Method::PUT, "/v1/drain", order)?;
    let left = waiting::wait_for_end(&socket, &report, since, |flows| {
        if !args.admin.json {
            print(format_args!("{}\n", counted(flows, "flow")));
        }
    })?;
    if left == 0 {
        if !args.admin.json {
            print(format_args!("done: pepd has ended\n"));
        }
        return Ok(ExitStatus::Success);
    }
    complain(format_args!(
        "timeout exceeded: pepd reset {}",
        counted(left, "flow")
    ));
    Ok(ExitStatus::FlowsReset)
}

//! `winkemu link`.

use std::{
    process::ExitCode,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use units::duration::Span;
use winkemu::shell::{EndSpec, LinkHandle};

use super::{
    common::{CommonArgs, LOOK_AGAIN},
    exit::{Failure, INEXACT},
};

pub(super) const HELP: &str = "\
Examples:
  # a geostationary satellite between two namespaces of `ip netns`
  winkemu link --a client/sat0=10.0.0.1/24 --b server/sat0=10.0.0.2/24 --preset geo

  # 1 % loss on the return path only, for 30 seconds, with a report
  winkemu link --a client/l0=10.0.0.1/24,fd00::1/64 --b server/l0=10.0.0.2/24,fd00::2/64 \\
      --rate 10mbit --delay 264ms --queue 660kB --ba loss=1% --duration 30s --json report.json

  # short outages: down with probability 0.4, drawn every 100 ms; a seed repeats the same outages
  winkemu link --a client/l0 --b server/l0 --wink p=0.4,i=100ms --seed 7";

/// Emulate a link between two namespaces until SIGINT, SIGTERM or the end of --duration.
#[derive(Debug, Args)]
pub(super) struct LinkCommand {
    /// End A, an interface to create: namespace (name, process id, path, or `.` for the current
    /// one), interface name, addresses
    #[arg(long, value_name = "NETNS/IF[=ADDR/LEN,...]")]
    a: EndSpec,
    /// End B, in the same form
    #[arg(long, value_name = "NETNS/IF[=ADDR/LEN,...]")]
    b: EndSpec,
    /// Stop the link after this time
    #[arg(long, value_name = "TIME")]
    duration: Option<Span>,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

impl LinkCommand {
    pub(super) fn execute(&self) -> Result<ExitCode, Failure> {
        let signals = Signals::new([SIGINT, SIGTERM])?;
        let (a, b) = (
            self.a.create(self.common.mtu())?,
            self.b.create(self.common.mtu())?,
        );
        let link = LinkHandle::spawn(self.common.spec(a, b)?)?;
        eprintln!(
            "winkemu: link up between {} and {}",
            self.a.interface, self.b.interface
        );
        let interrupted = wait(&link, signals, self.duration.map(|span| span.0));
        let report = link.stop();
        eprintln!("{}", report.summary());
        let counts = self.common.conclude(&report)?;
        // Lateness does not fail an interactive link, because it measures nothing.
        let interactive = interrupted && self.duration.is_none() && !self.common.is_recorded();
        Ok(if counts || interactive {
            ExitCode::SUCCESS
        } else {
            INEXACT.into()
        })
    }
}

/// Waits for a signal, the end of the time, or the end of the link; returns whether a signal came.
fn wait(link: &LinkHandle, mut signals: Signals, duration: Option<Duration>) -> bool {
    let begin = Instant::now();
    let (sender, signalled) = mpsc::channel();
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    while !link.has_ended() {
        let left = duration.map(|duration| duration.saturating_sub(begin.elapsed()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        let patience = left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        if signalled.recv_timeout(patience) != Err(RecvTimeoutError::Timeout) {
            return true;
        }
    }
    false
}

//! `pepd top`: a running pepd in a terminal, queried through its admin socket.
//!
//! ```text
//!   thread that polls once a second --> History --+
//!   keys --> Ui ----------------------------------+--> draw --> terminal, or text
//! ```
//!
//! - `history`: responses, and values derived from them over ten minutes
//! - `ui`: selected view and handling of keys
//! - `draw`: frames, a function of these two and the time

mod draw;
mod history;
mod ui;

use std::{
    env,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use pepd_api::status::Status;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

use self::{
    draw::Drawn,
    history::{Answer, History},
    ui::{Next, Ui},
};
use crate::client::{AskError, ask};

/// Maximum wait for keys before responses and signals are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of redrawing without events, which updates the time without a response.
const REDRAW: Duration = Duration::from_secs(1);
/// Interval between the two queries of a single frame with packet rates.
const PACKETS_SEEN: Duration = Duration::from_millis(2100);
/// Width of a frame printed as text.
const TEXT_WIDTH: u16 = 100;

/// Reason for a premature end.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// Standard output is no terminal.
    #[error("standard output is no terminal: use `pepd top --once` to print one frame as text")]
    NoTerminal,
    /// The terminal fails.
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
    /// The system denies a thread or a signal handler.
    #[error("cannot start: {0}")]
    System(#[source] io::Error),
    /// The polling thread has ended, which is a bug.
    #[error("the polling thread has ended")]
    Broken,
    /// No response for a single frame.
    #[error(transparent)]
    Unanswered(#[from] AskError),
    /// The response is malformed.
    #[error("{0}: malformed response ({1}): does that pepd have another version?")]
    NotUnderstood(PathBuf, serde_json::Error),
}

/// Returns one frame as text: 100 columns, and as many lines as it takes.
///
/// # Errors
/// If pepd does not answer.
pub fn once(socket: &Path) -> Result<String, TopError> {
    let mut history = History::new(socket.display().to_string(), 1.0);
    let mut ask = |now: f64| {
        let status: Status = question(socket, "/v1/status")?;
        let has_packets = status.packet_sites().next().is_some();
        let answer = Answer {
            status: Ok(status),
            flows: None,
        };
        history.take(now, answer);
        Ok::<_, TopError>(has_packets)
    };
    let began = Instant::now();
    let mut now = 0.0;
    // Rates of packets take two responses, since pepd reports counts, updated once a second.
    if ask(now)? {
        thread::sleep(PACKETS_SEEN);
        now = began.elapsed().as_secs_f64();
        ask(now)?;
    }
    Ok(draw::text(&history, &Ui::default(), now, TEXT_WIDTH))
}

/// Shows the status until the user quits. Restores the terminal in any case.
///
/// # Errors
/// If there is no terminal, or it fails.
pub fn run(socket: &Path, interval: Duration) -> Result<(), TopError> {
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let (tell, reported) = channel();
    watch_signals(tell.clone())?;
    let (wake, woken) = channel();
    let shown = Shown {
        wanted: Arc::default(),
        wake,
        reported,
    };
    let (socket, wanted) = (socket.to_owned(), Arc::clone(&shown.wanted));
    let source = socket.display().to_string();
    let name = thread::Builder::new().name("top-asking".to_owned());
    let asking = name.spawn(move || keep_polling(&socket, interval, &wanted, &woken, &tell));
    asking.map_err(TopError::System)?;
    let history = History::new(source, interval.as_secs_f64());
    let ui = Ui {
        // https://no-color.org
        colour: env::var_os("NO_COLOR").is_none_or(|word| word.is_empty()),
        ..Ui::default()
    };
    // A panic restores it too.
    let result = ratatui::try_init()
        .map_err(TopError::Terminal)
        .and_then(|mut terminal| shown.show(&mut terminal, history, ui));
    let restored = ratatui::try_restore().map_err(TopError::Terminal);
    result.and(restored)
}

/// Event from another thread.
#[derive(Debug)]
enum TopEvent {
    /// Response, or its error.
    Answer(Box<Answer>),
    /// Signal to quit.
    End,
}

/// Main thread: shows the responses of the polling thread.
struct Shown {
    /// Path of the flows to query with each status.
    wanted: Arc<Mutex<Option<String>>>,
    wake: Sender<()>,
    reported: Receiver<TopEvent>,
}

impl Shown {
    fn show(
        &self,
        terminal: &mut DefaultTerminal,
        mut history: History,
        mut ui: Ui,
    ) -> Result<(), TopError> {
        let began = Instant::now();
        let mut last: Option<Instant> = None;
        let mut drawn = Drawn::default();
        loop {
            let mut changed = last.is_none_or(|last| last.elapsed() >= REDRAW);
            loop {
                match self.reported.try_recv() {
                    Ok(TopEvent::Answer(answer)) => {
                        history.take(began.elapsed().as_secs_f64(), *answer);
                    }
                    Ok(TopEvent::End) => return Ok(()),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Err(TopError::Broken),
                }
                changed = true;
            }
            if changed {
                let now = began.elapsed().as_secs_f64();
                let frame = terminal.draw(|frame| {
                    drawn = draw::draw(&history, &ui, now, frame.buffer_mut());
                });
                frame.map_err(TopError::Terminal)?;
                last = Some(Instant::now());
            }
            if !event::poll(LOOK).map_err(TopError::Terminal)? {
                continue;
            }
            if let Event::Key(key) = event::read().map_err(TopError::Terminal)? {
                let sites = history
                    .status()
                    .into_iter()
                    .flat_map(|status| &status.sites);
                let sites: Vec<_> = sites.map(|site| site.name.as_str()).collect();
                match ui.press(key, drawn.room, drawn.most, &sites) {
                    Next::Stay => {}
                    Next::Ask => self.ask(ui.flows_target()),
                    Next::Leave => return Ok(()),
                }
            }
            // A key or a resize: redraw.
            last = None;
        }
    }

    fn ask(&self, flows: Option<String>) {
        *self.wanted.lock() = flows;
        // If the thread has ended, the main loop finds out.
        let _ = self.wake.send(());
    }
}

/// Polls until the main thread has ended.
fn keep_polling(
    socket: &Path,
    interval: Duration,
    wanted: &Mutex<Option<String>>,
    woken: &Receiver<()>,
    tell: &Sender<TopEvent>,
) {
    loop {
        let flows = wanted.lock().clone();
        let status = question(socket, "/v1/status").map_err(|err| err.to_string());
        let flows = flows.filter(|_| status.is_ok());
        let flows = flows.map(|target| question(socket, &target).map_err(|err| err.to_string()));
        let answer = Answer { status, flows };
        if tell.send(TopEvent::Answer(Box::new(answer))).is_err() {
            return;
        }
        match woken.recv_timeout(interval) {
            Err(RecvTimeoutError::Disconnected) => return,
            // One query answers all keys pressed in the meantime.
            Ok(()) | Err(RecvTimeoutError::Timeout) => while woken.try_recv().is_ok() {},
        }
    }
}

fn question<T: DeserializeOwned>(socket: &Path, target: &str) -> Result<T, TopError> {
    let answer = ask(socket, Method::GET, target, String::new())?;
    let answer = serde_json::from_slice(&answer);
    answer.map_err(|err| TopError::NotUnderstood(socket.to_owned(), err))
}

/// Handles signals that would end the program, so that the terminal is restored.
fn watch_signals(tell: Sender<TopEvent>) -> Result<(), TopError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(TopError::System)?;
    let kinds = [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
    ];
    let signals = {
        let _entered = runtime.enter();
        kinds.map(signal)
    };
    let [hangup, interrupt, terminate] = signals;
    let signals = hangup.and_then(|hangup| Ok((hangup, interrupt?, terminate?)));
    let (mut hangup, mut interrupt, mut terminate) = signals.map_err(TopError::System)?;
    let name = thread::Builder::new().name("top-signals".to_owned());
    let watching = name.spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = hangup.recv() => {}
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = terminal_gone() => {}
            }
        });
        // The main thread may have ended.
        let _ = tell.send(TopEvent::End);
        if is_terminal_gone() {
            // Nothing is left to restore, and crossterm would read the end of file for ever.
            process::exit(128 + libc::SIGHUP);
        }
    });
    watching.map(|_| ()).map_err(TopError::System)
}

/// Waits until the terminal has hung up. A program outside its session gets no signal.
async fn terminal_gone() {
    while !is_terminal_gone() {
        tokio::time::sleep(REDRAW).await;
    }
}

fn is_terminal_gone() -> bool {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let looked = poll(&mut fds, PollTimeout::ZERO);
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    looked.is_ok() && fds[0].revents().is_some_and(|is| is.intersects(gone))
}

#[cfg(test)]
mod tests;

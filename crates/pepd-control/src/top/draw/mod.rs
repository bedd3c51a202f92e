//! Drawing of frames. This module reads no clock and no terminal.
//!
//! - `overview`: link, sites, peers, limits
//! - `flows`: list of flows
//! - `packets`: sites of mode `packet`
//! - `parts`: elements of lines

mod flows;
mod overview;
mod packets;
mod parts;

use pepd_api::text::span;
use ratatui::{
    buffer::{Buffer, Cell},
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
};
use units::counted;

use self::parts::fitted;
use super::{
    history::History,
    ui::{Ui, View},
};

/// Minimum width and height of a frame.
pub(super) const SMALLEST: (u16, u16) = (80, 24);

/// Content of a frame before its size is known: a fixed head and a scrollable list.
struct Page {
    head: Vec<Line<'static>>,
    list: Vec<Line<'static>>,
}

/// Visible lines of the list, and its maximum scroll position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Drawn {
    /// Visible lines.
    pub(super) room: usize,
    /// Maximum scroll position.
    pub(super) most: usize,
}

/// Meaning of a part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tone {
    /// Heading.
    Head,
    /// Normal state.
    Good,
    /// Problem.
    Bad,
    /// Title or footer.
    Bar,
    /// Graph.
    Graph,
}

impl Ui {
    fn style(&self, tone: Tone) -> Style {
        let (colour, modifier) = match tone {
            Tone::Head => (None, Modifier::BOLD),
            Tone::Good => (Some(Color::Green), Modifier::BOLD),
            Tone::Bad => (Some(Color::Red), Modifier::BOLD | Modifier::REVERSED),
            Tone::Bar => (None, Modifier::REVERSED),
            Tone::Graph => (Some(Color::Cyan), Modifier::empty()),
        };
        let style = Style::new().add_modifier(modifier);
        match colour.filter(|_| self.colour) {
            Some(colour) => style.fg(colour),
            None => style,
        }
    }

    fn span(&self, tone: Tone, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(tone))
    }
}

/// Draws a frame that fills the buffer.
pub(super) fn draw(history: &History, ui: &Ui, now: f64, frame: &mut Buffer) -> Drawn {
    let area = frame.area;
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        too_small(area, frame);
        return Drawn::default();
    }
    let width = usize::from(area.width);
    let page = page(history, ui, width);
    let mut place = area.y;
    let mut put = |line: &Line<'_>| {
        frame.set_line(area.x, place, line, area.width);
        place += 1;
    };
    put(&title(history, ui, width));
    put(&silence(history, ui, now));
    page.head.iter().for_each(&mut put);
    // The title, the line below it and the footer.
    let room = usize::from(area.height).saturating_sub(page.head.len() + 3);
    let most = page.list.len().saturating_sub(room);
    let begin = ui.scroll.min(most);
    page.list.iter().skip(begin).take(room).for_each(&mut put);
    let below = (most > 0).then(|| (begin, page.list.len().saturating_sub(begin + room)));
    let footer = footer(ui, width, below);
    frame.set_line(area.x, area.bottom() - 1, &footer, area.width);
    if ui.help {
        help(ui, area, frame);
    }
    Drawn { room, most }
}

/// Returns a frame of the required height as text.
pub(super) fn text(history: &History, ui: &Ui, now: f64, width: u16) -> String {
    let page = page(history, ui, usize::from(width));
    let lines = page.head.len() + page.list.len() + 3;
    let height = u16::try_from(lines).unwrap_or(u16::MAX).max(SMALLEST.1);
    let mut frame = Buffer::empty(Rect::new(0, 0, width, height));
    draw(history, ui, now, &mut frame);
    // The footer lists keys, which text has not.
    lines_of(&frame)[..usize::from(height) - 1]
        .join("\n")
        .trim_end()
        .to_owned()
        + "\n"
}

/// Returns the lines of a frame.
pub(super) fn lines_of(frame: &Buffer) -> Vec<String> {
    let rows = frame.content.chunks(usize::from(frame.area.width).max(1));
    let lines = rows.map(|row| row.iter().map(Cell::symbol).collect::<String>());
    lines.map(|line| line.trim_end().to_owned()).collect()
}

fn page(history: &History, ui: &Ui, width: usize) -> Page {
    match ui.view {
        View::Overview => overview::page(history, ui, width),
        View::Flows => flows::page(history, ui, width),
    }
}

fn title(history: &History, ui: &Ui, width: usize) -> Line<'static> {
    let mut text = " pepd".to_owned();
    if let Some(status) = history.status() {
        let (version, pid, up) = (&status.version, status.pid, span(status.uptime_s));
        text += &format!(" {version}, process {pid}, up {up}");
        if status.restarts > 0 {
            text += &format!(", {}", counted(status.restarts, "restart"));
        }
        if status.draining {
            text += ", DRAINING: accepts no new flows";
        }
    }
    text += &format!("  {}", history.source);
    Line::from(ui.span(Tone::Bar, fitted(&text, width)))
}

fn silence(history: &History, ui: &Ui, now: f64) -> Line<'static> {
    let Some((seconds, why)) = history.silence(now) else {
        return Line::default();
    };
    let (source, since) = (&history.source, span(seconds));
    let stale = if history.status().is_some() {
        "; last data below"
    } else {
        ""
    };
    let text = format!("no answer from {source} for {since}{stale} ({why})");
    Line::from(ui.span(Tone::Bad, text))
}

fn footer(ui: &Ui, width: usize, hidden: Option<(usize, usize)>) -> Line<'static> {
    let mut text = match ui.view {
        View::Overview => " q quit  ? help  f flows".to_owned(),
        View::Flows => {
            let site = ui.site.as_deref().unwrap_or("all");
            let order = ui.order.name();
            format!(" q quit  ? help  f overview  s sort: {order}  i site: {site}")
        }
    };
    if let Some((above, below)) = hidden {
        text += &format!("  ↑↓ {above} lines above, {below} below");
    }
    Line::from(ui.span(Tone::Bar, fitted(&text, width)))
}

fn too_small(area: Rect, frame: &mut Buffer) {
    let (width, height) = SMALLEST;
    let lines = [
        format!("{} x {} is too small:", area.width, area.height),
        format!("need {width} x {height} or more."),
        "q quits.".to_owned(),
    ];
    for (row, line) in area.rows().zip(&lines) {
        frame.set_stringn(row.x, row.y, line, usize::from(row.width), Style::new());
    }
}

const HELP: [&str; 13] = [
    "q, Ctrl-C      quit",
    "? h            toggle this help; Esc closes it",
    "f, Tab         toggle the list of flows",
    "s              flows: sort by bytes, rate, age, rtt",
    "i              flows: next site, then all sites",
    "↑↓ PgUp PgDn   scroll the list; Home, End",
    "",
    "Graphs: ten minutes, each with its own scale.",
    "loss: packets lost on the link. unrepaired: lost",
    "in spite of FEC. FEC: repair packets per packet.",
    "delay: RTT minus its minimum (queues). held:",
    "bytes acknowledged to a host and not yet by the",
    "other end.",
];

fn help(ui: &Ui, area: Rect, frame: &mut Buffer) {
    const WIDTH: u16 = 54;
    let height = HELP.len() as u16 + 2;
    let corner = (
        area.x + (area.width - WIDTH) / 2,
        area.y + (area.height - height) / 2,
    );
    let bar = format!("{:─<1$}", "", usize::from(WIDTH) - 2);
    let style = ui.style(Tone::Head);
    let text = |row: usize| format!("│ {:<1$} │", HELP[row], usize::from(WIDTH) - 4);
    for row in 0..height {
        let line = match usize::from(row) {
            0 => format!("┌{bar}┐"),
            row if row == HELP.len() + 1 => format!("└{bar}┘"),
            row => text(row - 1),
        };
        frame.set_string(corner.0, corner.1 + row, line, style);
    }
}

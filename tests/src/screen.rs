//! A program in a terminal: its screen, key presses, and pictures.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    num::NonZeroU16,
    process::{ChildStdin, ExitStatus, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use vt100::{Cell, Color, Parser};
use winkemu::netns::Process;

use crate::{
    host::Host,
    wait::{PATIENCE, wait_within},
};

/// Printed after the program's end if the terminal's settings are unchanged.
const RESTORED: &str = "settings are as before";

/// A shell in a terminal of its own (by script(1)), which runs one program.
pub struct Screen {
    process: Process,
    keys: ChildStdin,
    parser: Arc<Mutex<Parser>>,
    reader: Option<JoinHandle<()>>,
}

impl Screen {
    /// Runs a shell command on a terminal of this size.
    ///
    /// # Panics
    /// When script(1) is missing.
    pub fn start(host: &Host, line: &str, (rows, columns): (u16, u16)) -> Self {
        let script = format!(
            "stty rows {rows} cols {columns}; before=$(stty -g); {line}; code=$?; \
             [ \"$before\" = \"$(stty -g)\" ] && echo '{RESTORED}'; exit $code"
        );
        let mut command = host.command("script");
        command.args(["--quiet", "--flush", "--return", "--command", &script]);
        command
            .arg("/dev/null")
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm-256color");
        command
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command).expect("script(1), of bsdutils");
        let child = process.pipes();
        let keys = child.stdin.take().expect("a pipe was asked for");
        let mut output = child.stdout.take().expect("a pipe was asked for");
        let [rows, columns] = [rows, columns].map(|n| NonZeroU16::new(n).expect("a size"));
        let parser = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let shown = Arc::clone(&parser);
        let reader = thread::spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(length @ 1..) = output.read(&mut piece) {
                let mut parser = shown.lock();
                parser.process(&piece[..length]);
            }
        });
        Self {
            process,
            keys,
            parser,
            reader: Some(reader),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        let parser = self.parser.lock();
        look(parser.screen())
    }

    /// Returns the lines of the screen.
    pub fn lines(&self) -> Vec<String> {
        self.look(|screen| screen.contents().lines().map(ToOwned::to_owned).collect())
    }

    /// Presses keys.
    ///
    /// # Panics
    /// When the program has ended.
    pub fn press(&mut self, keys: &str) {
        let pressed = self.keys.write_all(keys.as_bytes());
        pressed
            .and_then(|()| self.keys.flush())
            .expect("it reads keys");
    }

    /// Waits until the screen matches; returns its lines.
    ///
    /// # Panics
    /// On a timeout, with the screen.
    pub fn wait(&self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        let found = wait_within(PATIENCE, || {
            Some(self.lines()).filter(|lines| wanted(lines))
        });
        found.unwrap_or_else(|| panic!("not seen: {what}\n{}", self.lines().join("\n")))
    }

    /// Waits until a line contains this text.
    ///
    /// # Panics
    /// On a timeout.
    pub fn wait_text(&self, text: &str) -> Vec<String> {
        self.wait(text, |lines| lines.iter().any(|line| line.contains(text)))
    }

    /// Returns whether any cell has a colour.
    pub fn has_colours(&self) -> bool {
        self.look(|screen| {
            let cells = cells(screen).into_iter().flatten();
            let mut colours = cells.flat_map(|cell| [cell.fgcolor(), cell.bgcolor()]);
            colours.any(|colour| colour != Color::Default)
        })
    }

    /// Waits for the program to end; returns its exit code, and whether the terminal is as before.
    ///
    /// # Panics
    /// On a timeout.
    pub fn ended(mut self) -> (Option<i32>, bool) {
        let ended = self
            .process
            .wait(PATIENCE)
            .expect("a child can be waited for");
        let Some(status) = ended else {
            panic!("it does not end:\n{}", self.lines().join("\n"))
        };
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it reads to the end");
        }
        let restored = self.lines().iter().any(|line| line.contains(RESTORED));
        let left = self.look(|screen| !screen.alternate_screen() && !screen.hide_cursor());
        (ExitStatus::code(&status), restored && left)
    }

    /// Returns a picture of the screen (SVG).
    pub fn picture(&self) -> String {
        self.look(|screen| draw(&cells(screen)))
    }
}

fn cells(screen: &vt100::Screen) -> Vec<Vec<&Cell>> {
    let (rows, columns) = screen.size();
    let row = |row| (0..columns.get()).filter_map(move |column| screen.cell(row, column));
    (0..rows.get())
        .map(|number| row(number).collect())
        .collect()
}

/// The size of a cell in pixels.
const CELL: (f64, f64) = (8.4, 18.0);

fn draw(rows: &[Vec<&Cell>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let (width, height) = (
        columns as f64 * CELL.0 + 16.0,
        rows.len() as f64 * CELL.1 + 16.0,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"monospace\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#16181d\"/>\n"
    );
    for (number, row) in rows.iter().enumerate() {
        let mut column = 0;
        for run in row.chunk_by(|a, b| look_of(a) == look_of(b)) {
            draw_run(&mut svg, run, (column, number));
            column += run.len();
        }
    }
    svg + "</svg>\n"
}

fn look_of(cell: &Cell) -> (Color, bool, bool) {
    (cell.fgcolor(), cell.bold(), cell.inverse())
}

/// Draws cells of the same style.
fn draw_run(svg: &mut String, run: &[&Cell], (column, row): (usize, usize)) {
    let (colour, bold, inverse) = look_of(run[0]);
    let text = run.iter().map(|cell| match cell.contents() {
        "" => " ",
        "&" => "&amp;",
        "<" => "&lt;",
        ">" => "&gt;",
        text => text,
    });
    let text: String = text.collect();
    if text.trim().is_empty() && !inverse {
        return;
    }
    let (x, y) = (8.0 + column as f64 * CELL.0, 8.0 + row as f64 * CELL.1);
    let width = run.len() as f64 * CELL.0;
    let colour = match colour {
        Color::Idx(1 | 9) => "#ff6b6b",
        Color::Idx(2 | 10) => "#69db7c",
        Color::Idx(6 | 14) => "#66d9e8",
        _ => "#e9ecef",
    };
    let fill = if inverse {
        let height = CELL.1;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
        );
        "#16181d"
    } else {
        colour
    };
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" fill=\"{fill}\"{weight} xml:space=\"preserve\">{text}</text>",
        y + 14.0
    );
}

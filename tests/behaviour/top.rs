//! `pepd top` in a terminal, beside a pepd with flows.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pepd_tests::{
    bed::Family, echo::EchoServer, pep_binary::pepd, screen::Screen, tunnel::TunnelBed,
    wait::wait_for,
};

use crate::{
    support::Busy,
    tunnel::{LINK, PORT, Running, SITE, connect, traffic},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";
/// A second site, with few flows.
const SPLIT: &str = "[[site]]\nname = \"mail\"\nmatch = { dport = [7001] }\n";

/// Returns the command line.
fn top(socket: &Path, more: &str) -> String {
    let (program, socket) = (pepd().display(), socket.display());
    format!("{more} '{program}' top --socket '{socket}' --interval 200ms")
}

/// Returns a command line that finds the socket in the default directory.
fn top_by_default(socket: &Path) -> String {
    let socket = socket.display();
    let here = format!(
        "unshare --mount sh -c 'mount -t tmpfs none /run && mkdir /run/pepd && ln -s \"$0\" /run/pepd/pepd.sock && exec \"$@\"' \
         '{socket}'"
    );
    top(Path::new("/run/pepd/pepd.sock"), &here)
}

fn begins(lines: &[String], begin: &str, unlike: &str) -> bool {
    let mut found = lines.iter().filter(|line| line.starts_with(begin));
    found.any(|line| !line.contains(unlike))
}

/// Opens a terminal that shows rates of a running pepd.
fn show(bed: &TunnelBed, socket: &Path, more: &str) -> Screen {
    let screen = Screen::start(&bed.host("boat"), &top(socket, more), (30, 100));
    screen.wait("a rate up", |lines| begins(lines, "up  ", " 0 bit/s"));
    screen
}

#[test]
fn top_shows_sites_rates_and_flows_and_leaves_the_terminal_as_it_was() {
    let bed = TunnelBed::new(&format!("{LINK},loss=1%"));
    let running = Running::start(&bed, "", &format!("{SPLIT}{SITE}{ADMIN}"));
    let (busy, other, _echo) = traffic(&bed);
    // No pepd uses the default path.
    let socket = running.boat.path("pepd.sock");
    let line = top_by_default(&socket);
    let mut screen = Screen::start(&bed.host("boat"), &line, (30, 100));
    screen.wait_text("no answer from /run/pepd/pepd.sock");
    screen.wait_text("waiting for an answer");
    symlink(running.boat.path("admin.sock"), &socket).expect("a link");
    let seen = screen.wait("a rate of the site", |lines| {
        begins(lines, "up  ", " 0 bit/s") && begins(lines, "all  ", " 0 bit/s ")
    });
    for begin in ["link UP", "mail ", "hub ", "queue: ", "flows 2 of "] {
        let found = seen.iter().any(|line| line.starts_with(begin));
        assert!(found, "{begin}:\n{}", seen.join("\n"));
    }
    assert!(screen.has_colours());
    screen.press("f");
    let client = other.local_addr().expect("connected").to_string();
    screen.wait_text(&format!("{client} -> "));
    screen.wait_text("2 flows, by bytes");
    screen.press("ii");
    screen.wait_text("1 flow of site all, by bytes");
    screen.press("?");
    screen.wait_text("q, Ctrl-C      quit");
    screen.press("?f");
    screen.wait_text("f flows");
    take_picture(&screen);
    fs::remove_file(&socket).expect("it was there");
    screen.wait_text("last data below");
    screen.press("q");
    assert_eq!(screen.ended(), (Some(0), true));
    drop((busy, other));
    running.stop_after_errors();
}

#[test]
fn top_leaves_the_terminal_as_it_was_by_control_c_and_signals_and_has_no_colours_if_not_wanted() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let busy = Busy::start(connect(&bed, Family::V4));
    let socket = running.boat.path("admin.sock");
    let mut screen = show(&bed, &socket, "NO_COLOR=1");
    assert!(!screen.has_colours());
    screen.press("\u{3}");
    assert_eq!(screen.ended(), (Some(0), true));
    // The shell prints its process id, and becomes the program.
    let number = running.boat.path("number");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let tell = format!(
            "sh -c 'echo $$ >\"$0\"; exec \"$@\"' '{}'",
            number.display()
        );
        let screen = show(&bed, &socket, &tell);
        let id = fs::read_to_string(&number).expect("the shell wrote it");
        let id = Pid::from_raw(id.trim().parse().expect("a number"));
        kill(id, signal).expect("it runs");
        assert_eq!(screen.ended(), (Some(0), true), "{signal}");
    }
    // Without its terminal it ends.
    let tell = format!(
        "sh -c 'echo $$ >\"$0\"; exec \"$@\"' '{}'",
        number.display()
    );
    let screen = show(&bed, &socket, &tell);
    let id = fs::read_to_string(&number).expect("the shell wrote it");
    drop(screen);
    let process = Path::new("/proc").join(id.trim());
    wait_for("pepd top to end", || (!process.exists()).then_some(()));
    // Without a terminal it prints an alternative, and performs it.
    let arguments =
        |word: &'static str| ["top", word, "--socket", socket.to_str().expect("a path")];
    let program = pepd().to_str().expect("a path");
    let refused = bed
        .host("boat")
        .output(program, &arguments("--interval=1s"));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert!(
        why.contains("standard output is no terminal") && why.contains("--once"),
        "{why}"
    );
    let frame = bed.host("boat").run(program, &arguments("--once"));
    let lines: Vec<_> = frame.lines().map(ToOwned::to_owned).collect();
    assert!(begins(&lines, "all  ", " 0 bit/s "), "{frame}");
    assert!(!frame.contains('\u{1b}'), "{frame}");
    drop(busy);
    running.stop_after_errors();
}

/// Saves a picture to the directory `PEPD_TEST_PICTURES`, if that is set, once the screen has
/// content.
fn take_picture(screen: &Screen) {
    const AFTER: Duration = Duration::from_secs(240);
    if let Some(directory) = env::var_os("PEPD_TEST_PICTURES") {
        let begin = Instant::now();
        while begin.elapsed() < AFTER {
            thread::sleep(Duration::from_secs(1));
        }
        let path = Path::new(&directory).join("top.svg");
        fs::write(path, screen.picture()).expect("the directory exists");
    }
}

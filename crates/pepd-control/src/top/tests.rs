//! Tests of frames.

use pepd_api::{
    flows::{FlowsReport, LeftSite, NotAccelerated},
    status::Status,
};
use ratatui::{Terminal, backend::TestBackend, style::Color};
use serde_json::json;

use super::{
    draw::{SMALLEST, draw, lines_of, text},
    history::{Answer, History},
    ui::{Order, Ui, View},
};

/// Returns a status with a value in every field.
pub(super) fn status() -> Status {
    pepd_api::testing::status()
}

pub(super) fn answer(status: Status) -> Answer {
    Answer {
        status: Ok(status),
        flows: None,
    }
}

/// Returns flows of these hosts, with this number of bytes up.
pub(super) fn flows(each: &[(&str, u64)]) -> FlowsReport {
    let leg = |rtt: f64| {
        json!({
            "state": "established", "congestion": "hybla", "rtt_s": rtt, "rtt_min_s": rtt, "cwnd": 10, "mss": 1448,
            "unacked": 3, "in_flight": 3, "retransmitted": 4, "pacing_rate": null, "delivery_rate": null, "busy_s": 10.0,
            "rwnd_limited_s": 4.5, "sndbuf_limited_s": 0.0,
        })
    };
    let flow = |(place, (host, bytes)): (usize, &(&str, u64))| {
        json!({
            "site": "mail", "kind": "split", "client": host, "destination": "198.51.100.7:25", "age_s": 60 - place,
            "memory": [2048, 0], "disk": [0, 0], "kernel": [0, 0], "peer": null, "state": "relaying",
            "up_bytes": bytes, "down_bytes": 0, "client_leg": leg(0.001), "server_leg": leg(0.6 + place as f64),
        })
    };
    let report = json!({
        "total": each.len(), "flows": each.iter().enumerate().map(flow).collect::<Vec<_>>(),
        "not_accelerated": NotAccelerated {
            sites: vec![LeftSite { site: "voice".to_owned(), why: "mode".to_owned(), families: Vec::new() }],
            ..NotAccelerated::default()
        },
    });
    serde_json::from_value(report).expect("a report")
}

fn seen(answers: Vec<Answer>) -> History {
    let mut history = History::new("/run/pepd/sat.sock".to_owned(), 1.0);
    for (second, answer) in answers.into_iter().enumerate() {
        history.take(second as f64, answer);
    }
    history
}

/// Returns the lines on a terminal of this size.
fn shown(history: &History, ui: &Ui, now: f64, size: (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("memory");
    let drawn = terminal.draw(|frame| {
        draw(history, ui, now, frame.buffer_mut());
    });
    drawn.expect("memory");
    lines_of(terminal.backend().buffer())
}

fn has(lines: &[String], part: &str) -> bool {
    lines.iter().any(|line| line.contains(part))
}

#[track_caller]
fn assert_has(lines: &[String], parts: &[&str]) {
    for part in parts {
        assert!(has(lines, part), "{part}:\n{}", lines.join("\n"));
    }
}

#[test]
fn the_overview_shows_link_sites_peers_and_limits() {
    let mut status = status();
    status.sites[0].name = "mail".to_owned();
    let outage = json!({"began": 1_732_284_131.0, "ago_s": 300.0, "by": "probe", "lasted_s": 61.0});
    status.link.report.history = vec![serde_json::from_value(outage).expect("an outage")];
    let history = seen(vec![answer(status.clone()), answer(status)]);
    let lines = shown(&history, &Ui::default(), 1.0, SMALLEST);
    assert_has(
        &lines,
        &[
            "process 4194304, up 115d17h, 12 restarts, DRAINING",
            "link UP for 115d17h, set by operator, abcdefghijklmno, 9.99 Mbit/s, 600 ms",
            "outages 1234, 11d13h in total; last 22 Nov 14:02:11 for 1min1s",
            "down         123 kbit/s ",
            "loss              12.3% ",
            "unrepaired            - ",
            "FEC                100% ",
            "queue: pepd 1.00 GiB, disk 0 B, kernel 0 B; oldest 10d10h",
            "custody: memory 1 B of 2 B, no disk",
            "flows FULL 8192 of 8192, memory",
            "mail         tunnel  8192 9.99 Gbit/s  123 kbit/s  1.00 GiB   10d10h link down",
            "  never in the clear: packets outside of the tunnel are dropped",
            "q quit  ? help  f flows",
        ],
    );
    let far_down = Ui {
        scroll: 100,
        ..Ui::default()
    };
    let below = shown(&history, &far_down, 1.0, (SMALLEST.0, 33));
    assert_has(
        &below,
        &[
            "yyyyyyyyyyy… stopped udp    8192 12346 ms 11746 ms  999 Mbit/s 12.3%     -  100%",
            "quiet        DOWN              0",
            "rejects handshake responses (psk_file?)",
            "  speaks for 10.1.0.0/16, 2001:db8:ffff:ffff:ffff:ffff:ffff:0/112, 6 more",
            "  reaches nothing; opens no flows",
            "  speaks for 192.0.2.0/24; reaches 198.51.100.0/24, 10.9.0.1:443",
            "packet site             from hosts  to hosts  dropped    queue  active boosters",
            "voice            0.0/s     0 bit/s     0.0/s       22   100 ms  fec",
            "dropped 7 packets of yyyyyyyyyyyyyy",
            "22 Nov 14:02:11, 5min0s ago: lasted 1min1s, reported by probe",
        ],
    );
}

#[test]
fn flows_are_in_the_order_that_was_asked_for() {
    let report = |bytes: u64| {
        flows(&[
            ("192.0.2.1:1", bytes),
            ("192.0.2.2:2", 500),
            ("192.0.2.3:3", 7),
        ])
    };
    let asked = |bytes: u64| Answer {
        status: Ok(status()),
        flows: Some(Ok(report(bytes))),
    };
    let history = seen(vec![asked(400), asked(450)]);
    let order = |order: Order| {
        let ui = Ui {
            view: View::Flows,
            order,
            ..Ui::default()
        };
        let lines = shown(&history, &ui, 1.0, SMALLEST);
        let hosts = lines
            .iter()
            .filter_map(|line| line.trim_start().strip_prefix("192.0.2."));
        let hosts: String = hosts.filter_map(|host| host.chars().next()).collect();
        (hosts, lines)
    };
    assert_eq!(order(Order::Bytes).0, "213");
    assert_eq!(order(Order::Rate).0, "123");
    assert_eq!(order(Order::Age).0, "123");
    let (hosts, lines) = order(Order::Rtt);
    assert_eq!(hosts, "321");
    assert_has(
        &lines,
        &[
            "3 flows, by rtt",
            "not accelerated: voice (mode bypass)",
            "mail         split    1min0s     450 B   400 bit/s   600 ms       8 hybla",
            "   192.0.2.1:1 -> 198.51.100.7:25, 2.00 KiB held, limited by receiver's window",
            "s sort: rtt  i site: all",
        ],
    );
    let refused = seen(vec![Answer {
        status: Ok(status()),
        flows: Some(Err("there is no site `x`".to_owned())),
    }]);
    let ui = Ui {
        view: View::Flows,
        ..Ui::default()
    };
    assert_has(
        &shown(&refused, &ui, 0.0, SMALLEST),
        &["there is no site `x`"],
    );
}

#[test]
fn a_download_has_no_control_of_ours() {
    let mut report = flows(&[("192.0.2.1:1", 1000)]);
    report.flows[0].down_bytes = 1_000_000;
    let history = seen(vec![Answer {
        status: Ok(status()),
        flows: Some(Ok(report)),
    }]);
    let ui = Ui {
        view: View::Flows,
        ..Ui::default()
    };
    assert_has(
        &shown(&history, &ui, 0.0, SMALLEST),
        &["1 flow, by bytes", "8 receives"],
    );
}

#[test]
fn silence_is_shown_above_the_last_data() {
    let gone = Answer {
        status: Err("connection refused".to_owned()),
        flows: None,
    };
    let history = seen(vec![answer(status()), gone]);
    let lines = shown(&history, &Ui::default(), 31.0, (120, 30));
    assert_has(
        &lines,
        &[
            "no answer from /run/pepd/sat.sock for 31s; last data below (connection refused)",
            "link UP",
        ],
    );
    let never = seen(vec![Answer {
        status: Err("no such file".to_owned()),
        flows: None,
    }]);
    assert_has(
        &shown(&never, &Ui::default(), 2.0, SMALLEST),
        &["for 2s (no such file)", "waiting for an answer"],
    );
}

#[test]
fn a_terminal_that_is_too_small_gets_a_message() {
    let history = seen(vec![answer(status())]);
    for size in [(79, 24), (80, 23), (20, 3), (1, 1), (0, 0)] {
        let lines = shown(
            &history,
            &Ui {
                help: true,
                ..Ui::default()
            },
            0.0,
            size,
        );
        let wide = size.0 >= 20 && size.1 > 0;
        assert_eq!(has(&lines, "is too small"), wide, "{lines:?}");
        assert!(!has(&lines, "link"), "{lines:?}");
    }
}

#[test]
fn help_lists_the_keys() {
    let history = seen(vec![answer(status())]);
    let ui = Ui {
        help: true,
        ..Ui::default()
    };
    let lines = shown(&history, &ui, 0.0, SMALLEST);
    assert_has(
        &lines,
        &["q, Ctrl-C      quit", "f, Tab", "PgUp", "┌──", "──┘"],
    );
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn without_colours_nothing_has_one_and_the_words_are_the_same() {
    let history = seen(vec![answer(status())]);
    let frame = |colour: bool| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("memory");
        let ui = Ui {
            colour,
            ..Ui::default()
        };
        let drawn = terminal.draw(|frame| {
            draw(&history, &ui, 0.0, frame.buffer_mut());
        });
        drawn.expect("memory");
        terminal.backend().buffer().clone()
    };
    let (plain, coloured) = (frame(false), frame(true));
    let is_plain =
        |cell: &ratatui::buffer::Cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset);
    assert!(plain.content.iter().all(is_plain));
    assert!(!coloured.content.iter().all(is_plain));
    assert_eq!(lines_of(&plain), lines_of(&coloured));
}

#[test]
fn names_cannot_tell_the_terminal_anything() {
    let evil = "a\u{1b}[2Jb\u{9b}31mc\rd\ne\u{7}f\u{1b}]0;g\u{1b}\\h";
    let mut reported = status();
    reported.version = evil.to_owned();
    reported.link.interface = Some(evil.to_owned());
    reported.link.report.by = evil.to_owned();
    reported.total.flows_ended = [(evil.to_owned(), 1)].into();
    reported.sites[0].bypassed = Some(evil.to_owned());
    reported.peers[0].name = evil.to_owned();
    let mut report = flows(&[(evil, 1)]);
    report.flows[0].flow.site = Some(evil.to_owned());
    report.not_accelerated.sites[0].site = evil.to_owned();
    let asked = Answer {
        status: Ok(reported),
        flows: Some(Ok(report)),
    };
    let mut history = seen(vec![asked]);
    for view in [View::Overview, View::Flows] {
        let ui = Ui {
            view,
            site: Some(evil.to_owned()),
            ..Ui::default()
        };
        let lines = shown(&history, &ui, 0.0, (200, 50));
        let is_clean = |line: &String| !line.chars().any(char::is_control);
        assert!(lines.iter().all(is_clean), "{lines:?}");
        assert_has(&lines, &["a[2Jb31mcde"]);
        let text = text(&history, &ui, 0.0, 200);
        assert!(
            text.chars().all(|c| c == '\n' || !c.is_control()),
            "{text:?}"
        );
    }
    history.take(
        1.0,
        Answer {
            status: Err(evil.to_owned()),
            flows: None,
        },
    );
    let lines = shown(&history, &Ui::default(), 2.0, (200, 50));
    assert_has(&lines, &["a[2Jb31mcd"]);
}

#[test]
fn every_size_can_be_drawn() {
    let history = seen(vec![
        answer(status()),
        Answer {
            status: Ok(status()),
            flows: Some(Ok(flows(&[("a", 1); 40]))),
        },
    ]);
    for view in [View::Overview, View::Flows] {
        for (width, height) in (78..100).zip(22..).chain([(400, 100), (80, 500)]) {
            for scroll in [0, 3, 1000] {
                let ui = Ui {
                    view,
                    scroll,
                    help: scroll == 3,
                    ..Ui::default()
                };
                let lines = shown(&history, &ui, 1.0, (width, height));
                assert_eq!(lines.len(), usize::from(height));
            }
        }
    }
}

#[test]
fn as_text_a_frame_is_whole() {
    let mut status = status();
    let site = status.sites[0].clone();
    for number in 0..60 {
        status.sites.push(pepd_api::status::SiteStatus {
            name: format!("site-{number}"),
            ..site.clone()
        });
    }
    let text = text(&seen(vec![answer(status)]), &Ui::default(), 0.0, 100);
    assert!(
        text.contains("\nsite-59 ") && text.contains("deaf"),
        "{text}"
    );
    assert!(!text.contains("q end"), "{text}");
    assert!(
        text.lines()
            .all(|line| line.trim_end() == line && line.chars().count() <= 100),
        "{text}"
    );
}

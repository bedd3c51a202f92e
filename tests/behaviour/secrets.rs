//! Keys are told nobody: neither in the log, nor by what a running pepd answers, nor in what `pepd check` prints.

use std::{
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use pepd_tests::{bed::Family, echo::EchoServer, matrix::shared, tunnel::TunnelBed};

use crate::{
    support::echo_once,
    tunnel::{LINK, PORT, Running, SITE, connect},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// What the admin socket answers.
fn answer(running: &Running, target: &str) -> String {
    let mut stream = UnixStream::connect(running.boat.path("admin.sock")).expect("it listens");
    let request = format!("GET {target} HTTP/1.1\r\nhost: pepd\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("an answer");
    assert!(page.starts_with("HTTP/1.1 200"), "{target}: {page}");
    page
}

#[test]
fn no_key_is_in_a_log_or_an_answer() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
        let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
        let mut stream = connect(&bed, Family::V4);
        echo_once(&mut stream, b"what hosts say to each other");
        let config = running.boat.path("pepd.toml");
        let config = config.to_str().expect("a path");
        let check = bed.host("boat").output(
            pepd_tests::pep_binary::pepd().to_str().expect("a path"),
            &["check", "--config", config, "--no-kernel"],
        );
        let mut told = vec![
            String::from_utf8_lossy(&check.stdout).into_owned(),
            running.boat.ask(&["status"]),
            running.boat.ask(&["flows"]),
        ];
        told.extend(
            [
                "/v1/status",
                "/v1/flows",
                "/v1/custody",
                "/v1/link",
                "/v1/history",
                "/metrics",
            ]
            .map(|target| answer(&running, target)),
        );
        running.boat.counters();
        told.extend([running.boat.log().text(), running.hub.log().text()]);
        let told = told.concat();
        assert!(told.contains("flows_accepted") && told.contains("pepd_build_info"));
        for (name, secret) in bed.secrets() {
            assert!(!told.contains(&secret), "{name} is told");
            // Nor as people would print bytes.
            let bytes = BASE64_STANDARD.decode(&secret).expect("a key");
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!told.to_lowercase().contains(&hex), "{name} is told in hex");
            assert!(
                !told.contains(&format!("{bytes:?}")),
                "{name} is told as a list"
            );
        }
        assert!(!told.contains("what hosts say"), "bytes of hosts are told");
        let socket = std::fs::metadata(running.boat.path("admin.sock")).expect("a socket");
        assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    });
}

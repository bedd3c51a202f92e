//! Keys stay secret: in the log, in answers of a running pepd, and in the output of `pepd check`.

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

/// Returns the answer of the admin socket.
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
        let mut public = vec![
            String::from_utf8_lossy(&check.stdout).into_owned(),
            running.boat.ask(&["status"]),
            running.boat.ask(&["flows"]),
        ];
        public.extend(
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
        public.extend([running.boat.log().text(), running.hub.log().text()]);
        let public = public.concat();
        assert!(public.contains("flows_accepted") && public.contains("pepd_build_info"));
        for (name, secret) in bed.secrets() {
            assert!(!public.contains(&secret), "{name} appears");
            // Other forms in which bytes may be printed.
            let bytes = BASE64_STANDARD.decode(&secret).expect("a key");
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(
                !public.to_lowercase().contains(&hex),
                "{name} appears in hex"
            );
            assert!(
                !public.contains(&format!("{bytes:?}")),
                "{name} appears as a list"
            );
        }
        assert!(!public.contains("what hosts say"), "bytes of hosts appear");
        let socket = std::fs::metadata(running.boat.path("admin.sock")).expect("a socket");
        assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    });
}

//! A second implementation of the tunnel protocol, in Python, as a peer of a hub.

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    programs,
    tunnel::{End, TunnelBed},
};

use crate::tunnel::{LINK, PORT, STATED};

/// Test vectors, handshakes, low counters, streams, new keys, and a new address that is challenged.
#[test]
fn a_peer_written_from_the_document_alone_is_understood() {
    programs::install(&["python3-cryptography"]);
    let bed = TunnelBed::new(LINK);
    let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    let server = bed.server_at(Family::V4, PORT);
    let _echo = EchoServer::start(bed.host("server").listen(server));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/interop/pepd_peer.py");
    let output = bed.host("boat").output(
        // The interpreter of the package.
        "/usr/bin/python3",
        &[
            script,
            "--key",
            &bed.key("boat"),
            "--psk",
            &bed.key("psk"),
            "--hub-key",
            &bed.public_key("hub"),
            "--hub",
            &bed.hub_at().to_string(),
            "--server",
            &server.to_string(),
            "--client",
            &bed.address("client", Family::V4).to_string(),
            "--document",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md"),
        ],
    );
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    print!("{said}");
    assert!(output.status.success(), "{said}{errors}");
    hub.log().expect("peer sends from a new address");
    hub.stop();
}

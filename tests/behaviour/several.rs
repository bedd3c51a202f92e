//! Two pepds on one machine.

use pepd_tests::{
    bed::{Bed, Family, Path, Place, add_addresses, add_route, join},
    host::Host,
    matrix::{matrix_pepd_only, shared},
    pep::Pep,
    serve::Server,
    wait::PATIENCE,
};

use crate::support::{PORT, echo_once};

/// Keys that a second pepd must set, besides interfaces; see docs/configuration.md.
const APART: [(&str, &str); 4] = [
    ("table", "\"second\""),
    ("listen_port", "6000"),
    ("mark", "0x60000000"),
    ("route_table", "6000"),
];

/// Returns the configuration of a pepd for the second network, with all of [`APART`] but `except`.
fn second(bed: &Bed, except: &str) -> String {
    let keys = APART.iter().filter(|(key, _)| *key != except);
    let keys: String = keys
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    let config = bed.config("").expect("a path with pepd");
    config.replace("lan = [\"lan0\"]\n", &format!("lan = [\"lan1\"]\n{keys}"))
}

/// Adds a client in a separate network behind the same gateway.
fn second_client(bed: &Bed) -> Host {
    let client = Host::new();
    join(&bed.gateway, "lan1", &client, "eth0");
    add_addresses(&bed.gateway, "lan1", bed.family, &[(5, 1)]);
    add_addresses(&client, "eth0", bed.family, &[(5, 2)]);
    let everywhere = match bed.family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    };
    add_route(&client, everywhere, bed.family.address(5, 1));
    client
}

fn echo_from(bed: &Bed, client: &Host) {
    let stream = client.connect(bed.at(Place::Server, PORT));
    let mut stream = stream.expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    echo_once(&mut stream, b"a message of some bytes");
}

#[test]
fn two_with_keys_of_their_own_run_side_by_side_and_leave_each_other_alone() {
    matrix_pepd_only(|bed| {
        let client = second_client(bed);
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, |mut stream, _| {
            let mut copy = stream.try_clone().expect("a descriptor");
            let _ = std::io::copy(&mut stream, &mut copy);
        });
        let mut first = bed.start().expect("a path with pepd");
        let mut other = Pep::start(&bed.gateway, &second(bed, ""));
        echo_from(bed, &bed.client);
        echo_from(bed, &client);
        for pep in [&first, &other] {
            pep.wait_counter("flows_accepted", |flows| flows == 1);
        }
        // The first ends, and removes only its own rules.
        first.wait_idle();
        first.assert_healthy();
        assert_eq!(first.terminate(), 0);
        let tables = bed.gateway.run("nft", &["list", "tables"]);
        assert_eq!(tables.trim(), "table inet second");
        echo_from(bed, &client);
        other.wait_counter("flows_accepted", |flows| flows == 2);
        other.assert_healthy();
    });
}

#[test]
fn a_second_one_on_the_same_interface_is_warned_of() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let first = bed.start().expect("a path with pepd");
        let config = second(&bed, "").replace("lan = [\"lan1\"]", "lan = [\"lan0\"]");
        let other = Pep::start(&bed.gateway, &config);
        let warning = other.log().expect("another pepd");
        let cause = format!(
            "another pepd (process {}) also takes connections of lan0",
            first.id()
        );
        assert!(warning.message().contains(&cause), "{}", warning.message());
    });
}

#[test]
fn what_two_would_share_is_refused_by_the_name_of_its_key() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let mut first = bed.start().expect("a path with pepd");
        for (key, _) in APART {
            let mut other = Pep::spawn(&bed.gateway, &second(&bed, key), |command| command);
            let status = other.wait();
            assert_eq!(status.code(), Some(4), "{key}");
            let own = format!("give this one another `intercept.{key}`");
            let error = other.log().expect(&own);
            let message = error.message().to_owned();
            assert!(message.contains(&own), "{message}");
            assert!(
                message.contains(&format!("(process {})", first.id())),
                "{message}"
            );
        }
        first.assert_healthy();
    });
}

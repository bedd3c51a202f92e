//! An operator's order that the link is down, while tunnels still hear their peer.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use pepd_tests::{bed::Family, echo::EchoServer, tunnel::TunnelBed, wait::PATIENCE};

use crate::{
    custody::assert_waits,
    support::{assert_reset_after_connect, echo_once},
    survive::crash,
    tunnel::{LINK, PORT, Running, SITE, connect},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn expect(stream: &mut TcpStream, message: &[u8]) {
    let mut answer = vec![0; message.len()];
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.read_exact(&mut answer).expect("the echo");
    assert_eq!(answer, message);
}

/// Sends messages until an echo stays away, and returns the last one: the tunnel's thread may learn
/// of an order after the thread that confirms it.
fn send_until_held(stream: &mut TcpStream, round: &str) -> String {
    for number in 0..10 {
        let message = format!("held back: {round} {number}");
        stream.write_all(message.as_bytes()).expect("connected");
        let brief = Some(Duration::from_millis(300));
        stream.set_read_timeout(brief).expect("a socket");
        if stream.peek(&mut [0]).is_err() {
            return message;
        }
        expect(stream, message.as_bytes());
    }
    panic!("the tunnel sends on");
}

/// Sessions that begin while the order holds are held as well: after a crash of either end.
#[test]
fn nothing_is_sent_into_a_tunnel_while_an_operator_says_that_the_link_is_down() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
    let echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut before = connect(&bed, Family::V4);
    echo_once(&mut before, b"before");
    for (word, who) in [("up", &running.boat), ("auto", &running.hub)] {
        running.boat.ask(&["link", "down"]);
        let held = send_until_held(&mut before, word);
        let accepted = echo.accepted();
        let mut new = connect(&bed, Family::V4);
        new.write_all(b"a new one").expect("connected");
        assert_waits(&mut before);
        // The tunnel is alive, and would send otherwise.
        crash(who);
        running.wait_for_session();
        assert_waits(&mut before);
        assert_waits(&mut new);
        assert_eq!(echo.accepted(), accepted);
        running.boat.ask(&["link", word]);
        expect(&mut before, held.as_bytes());
        expect(&mut new, b"a new one");
        running.boat.ask(&["link", "auto"]);
    }
    drop(before);
    running.stop_after_errors();
}

#[test]
fn tunnelled_sites_refuse_new_flows_while_the_link_is_down_where_they_say_so() {
    let bed = TunnelBed::new(LINK);
    let site = format!("{SITE}while_down = \"refuse\"\n{ADMIN}");
    let running = Running::start(&bed, "", &site);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    running.boat.ask(&["link", "down", "--for", "1h"]);
    let client = bed.host("client");
    assert_reset_after_connect(client.connect(bed.server_at(Family::V4, PORT)));
    assert_eq!(running.boat.counter("ended_link_down"), 1);
    running.boat.ask(&["link", "auto"]);
    echo_once(&mut connect(&bed, Family::V4), b"after");
    running.stop();
}

//! Packets are traced before they are validated, so they may contain anything.

use std::time::Duration;

use fec::wire::Header;
use trace::{Event, Frame as Traced, Packet};

use super::{Bytes, config};
use crate::{
    ecn::Ecn,
    session::Session,
    wire::{Frame, emit_coded_header},
};

fn traced(packet: &[u8]) -> Packet {
    let mut session = Session::new(config(true), Duration::ZERO);
    session.trace().begin(usize::MAX);
    let (now, ecn) = (Duration::from_millis(1), Ecn::NotEct);
    // The packet may be rejected.
    let _ = session.handle_packet(now, 1, packet, packet.len(), ecn, &mut Bytes::default());
    let mut events = session.trace().take().events.into_iter();
    let received = events.find_map(|(_, event)| match event {
        Event::Received(packet) => Some(packet),
        _ => None,
    });
    received.expect("it has arrived")
}

#[test]
fn packets_in_packets_are_opened_once() {
    let mut packet = Vec::new();
    for _ in 0..9000 {
        emit_coded_header(0, &mut packet);
        Header::WindowData { id: 0 }.emit(&mut packet);
    }
    let frames = traced(&packet).frames;
    assert_eq!(frames, [Traced::Source { channel: 0 }, Traced::Unreadable]);
}

#[test]
fn a_thousand_frames_are_some_and_a_count() {
    let mut packet = Vec::new();
    for _ in 0..1000 {
        Frame::Probe.emit(&mut packet);
    }
    let frames = traced(&packet).frames;
    assert_eq!(frames.len(), 65);
    assert_eq!(frames[64], Traced::Further { frames: 1000 - 64 });
}

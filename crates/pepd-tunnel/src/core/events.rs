//! Events of the endpoint: of peers, sessions and streams, and the second tick.

use std::{collections::BTreeSet, time::Duration};

use pep_core::{pace::Line, stream_header::Opening};
use pepd_relay::limits::Resource;
use tunnel::{
    endpoint::{Carrier, DownReason, PeerEvent},
    session::{Event, LinkHint},
    wire::{CloseCode, ResetCode, StreamId},
};

use super::{Core, Kind, Shared};
use crate::{
    peers::{Contact, SessionFacts},
    shards::Heard,
    table::{Key, Known},
    tcp,
};

/// Silence after which the link counts as down rather than as a short outage: hosts' bytes beyond
/// the window are then accepted for custody.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// Silence after which a peer counts as unheard while nothing is sent to it, unless its session's
/// limit is longer.
const UNHEARD_AFTER: Duration = Duration::from_secs(5);

impl Core {
    /// Handles all pending events.
    pub(crate) fn dispatch(shared: &Shared) {
        let core = &mut *shared.borrow_mut();
        core.grant_heard();
        // Once for all streams that end in this turn: it looks at all flows of the peer.
        let mut ended = BTreeSet::new();
        while let Some((id, event)) = core.endpoint.poll_event() {
            let index = core.peers.index(id);
            match event {
                PeerEvent::Session(event) => {
                    if matches!(event, Event::Reset { .. } | Event::Closed { .. }) {
                        ended.insert(index);
                    }
                    core.on_session_event(shared, index, event);
                }
                event => core.on_peer_event(index, event),
            }
        }
        for index in ended {
            core.reuse_places(index);
        }
    }

    fn on_peer_event(&mut self, index: usize, event: PeerEvent) {
        let peer = &mut self.peers.list[index];
        match event {
            PeerEvent::Up => {
                peer.silent_since = None;
                // The mark was cleared when the session began, before its first bytes were placed.
                peer.table.set_link_down(self.off);
                self.keep_off(index);
                self.join_packets(index);
                let peer = &mut self.peers.list[index];
                peer.table.wake_waiting();
                let flows = self.resume(index);
                self.follow_unreached(index);
                self.set_up(index, true);
                // Tasks woken by this may start flows at once and must find the session open.
                if let Some(Line { left_out }) = self.line(index, Kind::Up) {
                    let peer = self.peer_name(index);
                    tracing::info!(peer, left_out, "peer up: session established");
                }
                if flows > 0
                    && let Some(Line { left_out }) = self.line(index, Kind::Resume)
                {
                    tracing::info!(
                        peer = self.peer_name(index),
                        flows,
                        left_out,
                        "flows of the previous session resume in this one"
                    );
                }
            }
            PeerEvent::Down(reason) => {
                self.log_down(index, &reason);
                let peer = &mut self.peers.list[index];
                // If the next session has begun already, the table belongs to that one.
                let next = self.endpoint.session(peer.id).is_some();
                if !next {
                    if matches!(reason, DownReason::Replaced | DownReason::Elsewhere) {
                        peer.table.on_restart();
                    } else {
                        // The peer has ended its flows, or one end does not understand the other.
                        peer.table.on_peer_closed();
                    }
                    self.peers.credits.on_end(index);
                    self.join_packets(index);
                }
                self.set_up(index, next);
            }
            PeerEvent::Roamed(remote) => {
                let (address, carrier) = (remote.address, remote.carrier);
                let was = peer.carrier.replace(carrier);
                let heard = match was {
                    None => "peer heard at its address",
                    Some(_) => "peer sends from a new address",
                };
                if let Some(Line { left_out }) = self.line(index, Kind::Moved) {
                    let config = &self.peers.list[index].config;
                    if !tcp::log_carrier(config, was, remote) {
                        let peer = config.name.as_str();
                        tracing::info!(peer, %address, %carrier, left_out, "{heard}");
                    }
                }
            }
            // Failed handshakes are in the peer's state.
            PeerEvent::Failed(_) | PeerEvent::Session(_) => {}
        }
    }

    fn log_down(&mut self, index: usize, reason: &DownReason) {
        // A close was logged when it arrived.
        if matches!(reason, DownReason::PeerClosed | DownReason::Elsewhere) {
            return;
        }
        let Some(Line { left_out }) = self.line(index, Kind::Down) else {
            return;
        };
        let (peer, flows) = (self.peer_name(index), self.peers.list[index].table.len());
        match reason {
            DownReason::Replaced => {
                tracing::info!(
                    peer,
                    flows,
                    left_out,
                    "session with the peer replaced by a new one"
                );
            }
            _ => tracing::warn!(
                peer,
                ?reason,
                flows,
                left_out,
                "session with the peer ended"
            ),
        }
    }

    fn log_close(&mut self, index: usize, code: CloseCode, reason: &str) {
        let Some(Line { left_out }) = self.line(index, Kind::Closed) else {
            return;
        };
        let (peer, flows) = (self.peer_name(index), self.peers.list[index].table.len());
        match code {
            CloseCode::Shutdown => {
                tracing::info!(peer, reason, flows, left_out, "peer closed the session");
            }
            CloseCode::Elsewhere => tracing::info!(
                peer,
                reason,
                flows,
                left_out,
                "peer closed the session: its flows wait for the next one"
            ),
            CloseCode::Protocol | CloseCode::Limit => tracing::warn!(
                peer,
                ?code,
                reason,
                flows,
                left_out,
                "peer aborted the session"
            ),
        }
    }

    fn on_session_event(&mut self, shared: &Shared, index: usize, event: Event) {
        let base = self.base;
        let peer = &mut self.peers.list[index];
        let (name, table) = (peer.config.name.as_str(), &mut peer.table);
        match event {
            Event::Opened {
                stream,
                stream_header,
                ..
            } => self.on_opened(shared, index, stream, &stream_header),
            Event::Readable { stream, until } => {
                if let Some(until) = table.drop_probed(stream, until) {
                    self.allow(index, stream, until);
                    return;
                }
                if let Some(flow) = table.on_readable(stream, until) {
                    self.on_answer(Key { peer: index, flow });
                }
                self.hold_if_needed(index, stream);
            }
            Event::Acked { stream, until } => table.on_acked(stream, until),
            Event::Finished { stream } => table.on_finished(stream),
            Event::Reset { stream, code } => {
                table.on_stream_end(stream, Some(code));
            }
            Event::Closed { stream } => table.on_stream_end(stream, None),
            Event::LinkDown if self.off => {}
            Event::LinkDown => {
                tracing::debug!(peer = name, "peer silent");
                peer.silent_since = Some(base.elapsed());
            }
            Event::LinkUp => {
                let silence = peer.silent_since.take();
                let silence = silence.map(|since| base.elapsed() - since);
                tracing::debug!(peer = name, ?silence, "peer heard again");
                peer.table.set_link_down(false);
                for flow in peer.table.flows() {
                    self.line_up(Key { peer: index, flow });
                }
                if self.set_up(index, true) {
                    let name = self.peers.list[index].config.name.as_str();
                    tracing::info!(peer = name, ?silence, "peer up again: its flows resume");
                }
            }
            Event::PeerClosed { code, reason } => self.log_close(index, code, &reason),
        }
    }

    /// Gives the places of ended streams to flows that wait for one.
    fn reuse_places(&mut self, index: usize) {
        self.resume_others(index);
        self.peers.list[index].table.wake_waiting();
    }

    fn on_opened(&mut self, shared: &Shared, index: usize, stream: StreamId, opening: &[u8]) {
        let peer = &mut self.peers.list[index];
        match Opening::parse(opening) {
            Ok(Opening::Inventory(flows)) => {
                peer.table.on_inventory(flows);
                peer.table.ignore(stream);
                if let Some(session) = self.endpoint.session(peer.id) {
                    session.finish(stream);
                }
            }
            Ok(Opening::Probe(down)) => self.on_probed(index, stream, down),
            Ok(Opening::Flow(stream_header)) => match stream_header.resume {
                Some(resume) => self.on_resumed(shared, index, stream, (stream_header, resume)),
                None if peer.table.find(stream_header.token) == Known::Unknown => {
                    self.begin(shared, index, stream, stream_header);
                }
                None => {
                    if let Some(Line { left_out }) = self.line(index, Kind::Repeated) {
                        let peer = self.peer_name(index);
                        tracing::error!(
                            peer,
                            left_out,
                            "flow of the peer refused: its token was used before; a bug or a replay: please report"
                        );
                    }
                    self.refuse(index, stream, ResetCode::Internal);
                }
            },
            Err(err) => {
                if let Some(Line { left_out }) = self.line(index, Kind::Refused) {
                    let peer = self.peer_name(index);
                    tracing::warn!(peer, error = %err, left_out, "flow of the peer refused");
                }
                self.refuse(index, stream, ResetCode::Internal);
            }
        }
    }

    /// Handles a flow of the peer for which there is no room.
    pub(super) fn on_refused(&mut self, index: usize) {
        let counters = &self.context.counters;
        counters.update(|stats| stats.tunnel_flows_refused += 1);
        let peer = &mut self.peers.list[index];
        if !peer.table.is_at_cap() {
            if self.context.has_room_for_flow() {
                // The peer has its part; others have room.
                self.log_part(index);
            } else {
                // Other flows lack it as well: the gate closes.
                self.context.admission.on_short(Resource::Memory);
            }
        } else if !std::mem::replace(&mut peer.cap_logged, true) {
            let flows = peer.table.len();
            let none = peer.config.flows == Some(0);
            let peer = peer.config.name.as_str();
            if none {
                let key = format!("`flows` of [peer.{peer}] is 0");
                tracing::warn!(
                    peer,
                    "peer may open no flows ({key}): pepd resets them (logged once)"
                );
                return;
            }
            tracing::warn!(
                peer,
                flows,
                "peer has its maximum of open flows (`flows` of [peer.{peer}]): pepd resets further ones (logged once)"
            );
        }
    }

    fn log_part(&mut self, index: usize) {
        if let Some(Line { left_out }) = self.line(index, Kind::Refused) {
            let peer = self.peer_name(index);
            tracing::warn!(
                peer,
                left_out,
                "flow of the peer refused: memory is short and the peer has its part of it (`limits.memory`)"
            );
        }
    }

    pub(super) fn refuse(&mut self, index: usize, stream: StreamId, code: ResetCode) {
        let peer = &mut self.peers.list[index];
        peer.table.abandon(stream);
        if let Some(session) = self.endpoint.session(peer.id) {
            session.reset(stream, code);
        }
        self.grant(index);
        self.wake_driver();
    }

    /// Sets whether the peer is up. Returns whether that is a change.
    fn set_up(&mut self, index: usize, is_up: bool) -> bool {
        let is_news = self.statuses.set(index, is_up);
        let counters = &self.context.counters;
        // Counted under the lock of the counters: several threads set this figure.
        counters.update(|stats| stats.tunnel_peers_up = self.statuses.count_up() as u64);
        is_news
    }

    /// Starts the silence of the peers that count as up because they were when the previous process
    /// ended.
    pub(crate) fn await_peers(&mut self) {
        let now = self.base.elapsed();
        for (index, peer) in self.peers.list.iter_mut().enumerate() {
            if self.statuses.is_up(index) {
                peer.silent_since = Some(now);
            }
        }
    }

    /// Does the work of every second.
    pub(crate) fn tick(&mut self) {
        self.count();
        self.report_heard_peers();
        self.sweep_connections();
        self.custody.age();
        self.send_facts();
        self.log_trouble();
        self.look_at_unreached();
        let now = self.base.elapsed();
        for index in 0..self.peers.list.len() {
            self.grant(index);
            let silence = self.silence(index, now);
            let peer = &mut self.peers.list[index];
            let has_session = self.endpoint.session(peer.id).is_some();
            let is_silent = silence.is_some_and(|silence| silence >= DOWN_AFTER);
            let down = !has_session || is_silent || self.off;
            if peer.table.set_link_down(down) && down {
                let (name, flows) = (peer.config.name.as_str(), peer.table.len());
                tracing::debug!(
                    peer = name,
                    flows,
                    "link to the peer down: its flows' bytes go into custody"
                );
            }
            peer.table.age(now);
            if let Some(flows) = peer.lines.take_flows() {
                let peer = peer.config.name.as_str();
                tracing::info!(
                    peer,
                    flows,
                    "flows of the peer ended: too many for a line each"
                );
            }
            if let Some(silence) = silence {
                self.on_silence(index, silence);
            }
        }
    }

    /// Publishes the state of peers for other threads.
    fn send_facts(&mut self) {
        let now = self.now();
        for (index, peer) in self.peers.list.iter().enumerate() {
            let session = self.endpoint.session(peer.id);
            let takes = session.as_ref().map(|session| session.takes_packets());
            let facts = session.map(|session| SessionFacts {
                carrier: peer.carrier,
                path: session.path(),
                stats: session.stats(),
                causes: session.causes(),
            });
            let state = self.endpoint.peer_state(peer.id);
            let contact = Contact {
                remote: state.and_then(|state| state.remote),
                silence: peer.heard.map(|heard| now.saturating_sub(heard)),
                sent_bytes: peer.sent_bytes,
                received_bytes: peer.received_bytes,
            };
            let flows = peer.table.len() as u64;
            let status = self.statuses.status(index);
            status.set_known(facts, contact, flows);
            status.set_addresses(self.endpoint.addresses(peer.id));
            if let Some(packets) = &peer.packets {
                status.set_packets(packets.facts(now, takes));
            }
        }
    }

    /// Returns how long a peer has been silent. While the link is switched off, sessions do not
    /// report silence.
    pub(super) fn silence(&self, index: usize, now: Duration) -> Option<Duration> {
        let peer = &self.peers.list[index];
        let known = peer.silent_since.map(|since| now - since);
        if !self.off || known.is_some() {
            return known;
        }
        let state = self.endpoint.peer_state(peer.id)?;
        let (silence, limit) = (
            self.now().saturating_sub(state.heard?),
            state.silence_limit?.max(UNHEARD_AFTER),
        );
        Some(silence).filter(|silence| *silence >= limit)
    }

    /// Reports to the outage monitor when a peer of any thread was last heard. A peer without a
    /// session gives no information on the link.
    fn report_heard_peers(&mut self) {
        let peers = self.peers.list.iter().filter_map(|peer| {
            let heard = self.endpoint.peer_state(peer.id)?.heard?;
            Some(match peer.silent_since {
                None => Heard::At(heard),
                Some(_) => Heard::Silent,
            })
        });
        let here = peers.max().unwrap_or(Heard::Nothing);
        match self.member.latest(here) {
            Heard::Nothing => self.context.outage.hear_nothing(),
            Heard::Silent => self.context.outage.hear(None),
            Heard::At(at) => {
                let ago = self.now().saturating_sub(at);
                self.context.outage.hear(Some(ago));
            }
        }
    }

    fn count(&mut self) {
        let seen = self.endpoint.stats();
        let refused = seen.malformed
            + seen.unknown
            + seen.unknown_keys
            + seen.forged
            + seen.repeated
            + seen.not_for_us
            + seen.refused;
        let peers = self.peers.list.iter();
        let by_tcp = peers.filter(|peer| peer.carrier == Some(Carrier::Tcp));
        let (by_tcp, connections) = (by_tcp.count(), self.tcp.len());
        let counts = [
            refused,
            by_tcp as u64,
            connections as u64,
            self.tcp.strangers_closed,
            self.tcp.peers_closed,
        ];
        let before = std::mem::replace(&mut self.counted, counts);
        self.context.counters.update(|stats| {
            let figures = [
                &mut stats.tunnel_datagrams_refused,
                &mut stats.tunnel_peers_by_tcp,
                &mut stats.tunnel_tcp_connections,
                &mut stats.tunnel_tcp_unauthenticated,
                &mut stats.tunnel_tcp_closed,
            ];
            // Differences, which wrap: the figures are sums over all threads.
            for ((figure, now), before) in figures.into_iter().zip(counts).zip(before) {
                *figure = figure.wrapping_add(now.wrapping_sub(before));
            }
        });
    }

    /// Makes a new session send nothing while the link is switched off.
    fn keep_off(&mut self, index: usize) {
        let now = self.now();
        let peer = &self.peers.list[index];
        if let Some(session) = self.endpoint.session(peer.id).filter(|_| self.off) {
            session.hint(now, LinkHint::Off);
        }
    }

    fn on_silence(&mut self, index: usize, silence: Duration) {
        let lost_after = self.peers.list[index].config.lost_after;
        if silence < lost_after || !self.set_up(index, false) {
            return;
        }
        let peer = &self.peers.list[index];
        let seconds = silence.as_secs();
        let (name, flows) = (peer.config.name.as_str(), peer.table.len());
        tracing::warn!(
            peer = name,
            seconds,
            flows,
            "peer down: its flows wait, `on_peer_loss` of the peer decides about new flows"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::sleep,
    };
    use tunnel::wire::CloseCode;

    use super::Shared;
    use crate::rig::{Rig, listener};

    /// Returns the packets that an end has sent in its session; none without a session.
    fn packets_sent(end: &Shared) -> Option<u64> {
        let core = &mut *end.borrow_mut();
        let session = core.endpoint.session(core.peers.list[0].id)?;
        Some(session.stats().packets_sent)
    }

    #[test]
    fn flows_go_on_in_the_next_session_if_the_peer_ends_one_elsewhere() {
        Rig::run(|rig| async move {
            let listener = listener().await;
            let mut client = rig.client(listener.local_addr().unwrap()).await;
            let (mut server, _) = listener.accept().await.unwrap();
            let first = vec![7; 400_000];
            let mut received = vec![0; 400_000];
            let (sent, came) =
                tokio::join!(client.write_all(&first), server.read_exact(&mut received));
            sent.unwrap();
            came.unwrap();
            let before = packets_sent(&rig.near);
            assert!(before > Some(200));
            {
                let far = &mut *rig.far.borrow_mut();
                let session = far.endpoint.session(far.peers.list[0].id).unwrap();
                session.close(CloseCode::Elsewhere, "it moves");
                far.wake_driver();
            }
            while packets_sent(&rig.near).is_none_or(|sent| Some(sent) >= before) {
                sleep(Duration::from_millis(1)).await;
            }
            client.write_all(b"then").await.unwrap();
            let mut then = [0; 4];
            server.read_exact(&mut then).await.unwrap();
            assert_eq!(&then, b"then");
        });
    }

    #[test]
    fn a_peer_is_down_only_after_long_silence() {
        Rig::run(|rig| async move {
            let listener = listener().await;
            let _client = rig.client(listener.local_addr().unwrap()).await;
            let _server = listener.accept().await.unwrap();
            rig.cut_wire(30).await;
            while rig.near.borrow().peers.list[0].silent_since.is_none() {
                sleep(Duration::from_millis(1)).await;
            }
            rig.near.borrow_mut().tick();
            assert_eq!(Rig::stats(&rig.near).tunnel_peers_up, 1);
        });
    }

    #[test]
    fn a_peer_from_before_a_crash_is_down_after_long_silence() {
        Rig::run(|rig| async move {
            let core = &mut *rig.near.borrow_mut();
            let lost_after = core.peers.list[0].config.lost_after;
            core.statuses.set(0, true);
            core.await_peers();
            core.tick();
            assert!(core.statuses.is_up(0));
            core.base -= lost_after;
            core.tick();
            assert!(!core.statuses.is_up(0));
        });
    }
}

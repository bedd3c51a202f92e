//! What the driver and the flows share: the endpoint, its peers, and their flows.
//!
//! - this module, what flows and the driver ask of it
//! - `events`, what the endpoint has to tell; `resuming`, flows that go on in another session
//! - `peers`, a peer and its flows; `packets`, packets beside them; `probed`, probes of the path to
//!   it; `recorded`, traces that operators ask for

mod events;
mod packets;
mod peers;
mod probed;
mod recorded;
mod resuming;
mod trouble;

use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    task::Waker,
    time::Duration,
};

use pep_core::{arena::name_hash, hosts::Host, key::PublicKey, stream_header::Opening};
use pepd_relay::flow::{Attached, FlowContext};
use tokio::time::Instant;
use tunnel::{
    class::Class,
    ecn::Ecn,
    endpoint::{Carrier, Endpoint, PeerId, Remote, Transmit},
    path::PathMemory,
    session::{LinkHint, Session, TooManyStreams},
    wire::{ResetCode, StreamId},
};

pub(super) use peers::Peers;

use super::{
    credit::{self, Usage},
    far,
    flow::PackingBuffers,
    peers::Statuses,
    table::{Custody, FlowBuffers, Table},
    tcp::Connections,
};
use crate::{
    custody::{Answered, Reply},
    table::Key,
};

/// The endpoint and all that belongs to it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) context: Arc<FlowContext>,
    pub(super) endpoint: Endpoint,
    pub(super) peers: Peers,
    pub(super) statuses: Statuses,
    /// For flows that the peers open.
    pub(super) far: Rc<far::Sites>,
    /// For flows that compress.
    pub(super) packing_buffers: Rc<RefCell<PackingBuffers>>,
    /// Where UDP does not get through.
    pub(super) tcp: Connections,
    /// What is held because links are away.
    pub(super) custody: Rc<Custody>,
    /// The beginning of time.
    base: Instant,
    /// Whom to tell that there may be something to send.
    pub(super) driver: Option<Waker>,
    /// Whose datagrams have come, while they come.
    heard: Option<usize>,
    /// An operator wants nothing to be sent.
    off: bool,
    /// A session that takes packets has begun.
    joined: bool,
    /// Recorders of any peer.
    recorded: Attached,
}

/// What our clock says when the core is made: what is remembered from before lies behind it.
pub(super) const BEGINNING: Duration = Duration::from_secs(48 * 3600);

/// The core, as tasks of one thread share it. Never borrowed across an await.
pub(super) type Shared = Rc<RefCell<Core>>;

impl Core {
    pub(super) fn new(
        context: Arc<FlowContext>,
        endpoint: Endpoint,
        peers: Peers,
        statuses: Statuses,
        far: far::Sites,
        tcp: Connections,
        custody: Rc<Custody>,
    ) -> Shared {
        Rc::new(RefCell::new(Self {
            context,
            endpoint,
            peers,
            statuses,
            far: Rc::new(far),
            packing_buffers: Rc::default(),
            tcp,
            custody,
            base: Instant::now(),
            driver: None,
            heard: None,
            off: false,
            joined: false,
            recorded: Attached::default(),
        }))
    }

    /// What the configuration calls a peer.
    pub(super) fn peer_name(&self, index: usize) -> &str {
        &self.peers.list[index].config.name
    }

    /// The peer with that [`name_hash`], and its name.
    pub(super) fn peer_of_hash(&self, hash: u64) -> Option<(usize, Arc<str>)> {
        let mut names = self.peers.list.iter().map(|peer| peer.config.name.as_str());
        let index = names.position(|name| name_hash(name) == hash)?;
        Some((index, self.peer_name(index).into()))
    }

    /// The time, by a clock of our own that began with [`BEGINNING`].
    pub(super) fn now(&self) -> Duration {
        BEGINNING + self.base.elapsed()
    }

    /// What the sessions that there are know of their paths, by the keys of their peers.
    pub(super) fn each_path(
        &mut self,
        mut with: impl FnMut(&PublicKey, &PathMemory, Option<SocketAddr>),
    ) {
        for peer in &self.peers.list {
            let state = self.endpoint.peer_state(peer.id);
            let Some((heard, remote)) = state.and_then(|state| Some((state.heard?, state.remote)))
            else {
                continue;
            };
            let by_udp = remote.filter(|remote| remote.carrier == Carrier::Udp);
            if let Some(session) = self.endpoint.session(peer.id) {
                let at = by_udp.map(|remote| remote.address);
                with(&peer.config.public_key, &session.memory(heard), at);
            }
        }
    }

    pub(super) fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    pub(super) fn entry(&mut self, key: Key) -> Option<&mut FlowBuffers> {
        self.peers.list[key.peer].table.get(key.flow)
    }

    pub(super) fn table(&mut self, peer: usize) -> &mut Table {
        &mut self.peers.list[peer].table
    }

    /// A flow with its stream and the session of that, if it has one.
    fn joined(&mut self, key: Key) -> Option<(&mut FlowBuffers, &mut Session, StreamId)> {
        let peer = &mut self.peers.list[key.peer];
        let entry = peer.table.get(key.flow)?;
        let stream = entry.stream()?;
        Some((entry, self.endpoint.session(peer.id)?, stream))
    }

    /// Whether there is a session with the peer.
    pub(super) fn has_session(&mut self, peer: usize) -> bool {
        let id = self.peers.list[peer].id;
        self.endpoint.session(id).is_some()
    }

    /// Opens the first stream of a flow that was announced.
    pub(super) fn open(&mut self, key: Key) -> Result<(), TooManyStreams> {
        let peer = &mut self.peers.list[key.peer];
        let session = self.endpoint.session(peer.id).ok_or(TooManyStreams)?;
        let entry = peer.table.get(key.flow).ok_or(TooManyStreams)?;
        entry.publish_opened();
        let announced = entry.announcement().ok_or(TooManyStreams)?;
        let opening = Opening::Flow(announced.stream_header.clone()).emit();
        let stream = session.open(announced.class, announced.site, &opening)?;
        session.set_host(
            stream,
            Host::from_address(announced.stream_header.client.ip()).number(),
        );
        peer.table.bind(key.flow, stream);
        self.line_up(key);
        self.wake_driver();
        Ok(())
    }

    /// What is held of a flow that can wait goes before what is held of those that have begun after
    /// it.
    pub(super) fn line_up(&mut self, key: Key) {
        let Some((entry, session, stream)) = self.joined(key) else {
            return;
        };
        let announced = entry.announcement();
        let born = announced.filter(|announced| announced.class == Class::DelayTolerant);
        if let Some(born) = born.map(|announced| announced.born)
            && let Some(until) = entry.written_to(entry.given())
        {
            session.queue(stream, born, until);
        }
    }

    /// Tells the session of what the leg has given, as far as it may soon be sent, and of its end.
    pub(super) fn advance(&mut self, key: Key) {
        if let Some((entry, session, stream)) = self.joined(key) {
            let until = entry.advance();
            if let Some(until) = entry.written_to(until) {
                session.written(stream, until);
                if entry.says_end() {
                    session.finish(stream);
                }
            }
            self.wake_driver();
        }
    }

    /// The leg has given its last byte.
    pub(super) fn finish(&mut self, key: Key) {
        if let Some(entry) = self.entry(key) {
            entry.finish();
        }
        self.advance(key);
    }

    /// The disk has done, or not done, what it was asked to.
    pub(super) fn on_disk_answered(&mut self, answered: Answered<Key>) {
        let custody = Rc::clone(&self.custody);
        let spot = match custody.answered(answered) {
            Some(Reply::Written { of, label, result }) => match self.entry(of) {
                Some(entry) => return entry.on_written(label.position, result),
                None => result.ok(),
            },
            Some(Reply::Read {
                of,
                label,
                spot,
                result,
            }) => match self.entry(of) {
                Some(entry) => {
                    entry.on_read(label.position, spot, result);
                    return self.advance(of);
                }
                None => Some(spot),
            },
            None => return,
        };
        // Its flow has ended meanwhile.
        if let Some(spot) = spot {
            custody.forget(spot);
        }
    }

    /// The leg took `count` bytes, and the peer may send as far as `until`.
    pub(super) fn consumed(&mut self, key: Key, count: u64, until: u64) {
        self.peers.list[key.peer].table.on_consumed(count);
        if let Some((entry, session, stream)) = self.joined(key) {
            session.allow(stream, entry.allowed_to(until));
            self.wake_driver();
        }
        self.grant(key.peer);
    }

    /// Lets the peer send as much as it needs and there is room for. To be called when there may be
    /// more: bytes have left, or bytes have come; and now and then.
    pub(super) fn grant(&mut self, index: usize) {
        let now = self.now();
        let peer = &self.peers.list[index];
        if let Some(session) = self.endpoint.session(peer.id) {
            let usage = Usage::new(session, &peer.table);
            let round = || credit::round(session);
            let until = self.peers.credits.grant(index, now, round, &usage);
            session.allow_session(until);
        }
    }

    /// The flow ends, well or with this code, and its leg is about to be closed.
    pub(super) fn conclude(&mut self, key: Key, code: Option<ResetCode>) {
        let how = code.unwrap_or(ResetCode::Ended);
        self.table(key.peer).conclude(key.flow, how);
    }

    /// The flow has ended, and if `code` says why not well, its stream with it.
    pub(super) fn remove(&mut self, key: Key, code: Option<ResetCode>) {
        let waits = self.entry(key).is_some_and(|entry| entry.is_suspended());
        if waits && code.is_some() {
            // The far end still has it, and is told: its stream is opened only to be reset.
            self.reopen(key);
        }
        let peer = &mut self.peers.list[key.peer];
        let stream = peer.table.remove(key.flow);
        if let (Some(stream), Some(code)) = (stream, code)
            && let Some(session) = self.endpoint.session(peer.id)
        {
            session.reset(stream, code);
        }
        self.grant(key.peer);
        self.wake_driver();
    }

    /// True where there is no need to know where else a peer may be: it is heard, or nothing is
    /// sent.
    pub(super) fn is_settled(&self, index: usize) -> bool {
        self.off || self.endpoint.is_well(self.now(), self.peers.list[index].id)
    }

    /// Addresses at which a peer is called.
    pub(super) fn addresses(&self, index: usize) -> &[SocketAddr] {
        self.endpoint.addresses(self.peers.list[index].id)
    }

    /// Calls a peer at these addresses from now on.
    pub(super) fn set_addresses(&mut self, index: usize, addresses: &[SocketAddr]) {
        let (now, id) = (self.now(), self.peers.list[index].id);
        self.endpoint.set_addresses(now, id, addresses);
        self.wake_driver();
    }

    /// A peer is as if it had just been added, without a session.
    #[cfg(test)]
    pub(super) fn replace_peer(&mut self, index: usize, config: &tunnel::endpoint::PeerConfig) {
        let old = self.peers.list[index].id;
        self.endpoint.remove_peer(old);
        match self.endpoint.add_peer(config.clone()) {
            Ok(id) => self.peers.rename(index, id),
            Err(err) => tracing::error!(error = %err, "cannot add a peer again"),
        }
        self.wake_driver();
    }

    /// Somebody who knows says whether the link is there.
    pub(super) fn hint(&mut self, hint: LinkHint) {
        let now = self.now();
        let was_off = std::mem::replace(&mut self.off, hint == LinkHint::Off);
        for peer in &mut self.peers.list {
            if let Some(session) = self.endpoint.session(peer.id) {
                session.hint(now, hint);
            }
            if self.off {
                // For how long nobody knows: what hosts send is kept at once.
                peer.table.set_link_down(true);
            } else if was_off && hint == LinkHint::Down {
                peer.silent_since.get_or_insert(self.base.elapsed());
            }
        }
        self.wake_driver();
    }

    /// Says good-bye to all peers. None of them gets a session any more.
    pub(super) fn close(&mut self) {
        self.endpoint.shut_down("pepd ends");
    }

    /// A datagram has arrived.
    pub(super) fn handle_datagram(
        &mut self,
        now: Duration,
        from: Remote,
        to: Option<IpAddr>,
        ecn: Ecn,
        datagram: &mut [u8],
    ) -> Option<PeerId> {
        let (peers, length) = (&mut self.peers, datagram.len() as u64);
        let peer = self
            .endpoint
            .handle_datagram(now, from, ecn, datagram, peers);
        let index = peers.index(peer?);
        let shell = &mut peers.list[index];
        shell.heard = Some(now);
        shell.received_bytes += length;
        if to.is_some() {
            shell.local = to;
        }
        if self.heard != Some(index) {
            self.grant_heard();
            self.heard = Some(index);
        }
        peer
    }

    /// Credit that was used is free again.
    fn grant_heard(&mut self) {
        if let Some(peer) = self.heard.take() {
            self.grant(peer);
        }
    }

    /// The next datagram to be sent now, behind what is in `out`: where to, and from which address.
    pub(super) fn poll_transmit(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<(Transmit, Option<IpAddr>)> {
        let before = out.len();
        let transmit = self.endpoint.poll_transmit(now, out, &mut self.peers)?;
        let length = out.len().saturating_sub(before) as u64;
        let peer = transmit.peer.map(|peer| self.peers.of_id(peer));
        let local = peer
            .and_then(|peer| {
                peer.sent_bytes += length;
                peer.local
            })
            .filter(|local| local.is_ipv4() == transmit.to.address.is_ipv4());
        Some((transmit, local))
    }

    /// It could not be sent there; perhaps the address is not ours any more from which it should
    /// have been.
    pub(super) fn on_send_failed(&mut self, to: SocketAddr) {
        for peer in &mut self.peers.list {
            let state = self.endpoint.peer_state(peer.id);
            if state.is_some_and(|state| state.remote == Some(to.into())) {
                peer.local = None;
            }
        }
    }
}

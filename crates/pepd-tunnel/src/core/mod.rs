//! State shared by the driver and the flows: the endpoint, its peers, and their flows.
//!
//! - this module, operations of flows and the driver
//! - `events`, events of the endpoint; `resuming`, flows that resume in another session
//! - `lines`, log lines that peers cause; `openings`, pace of their connections to servers
//! - `passing`, what arrives for another thread; `turns`, time of a turn, and datagrams that wait
//! - `reach`, flows that a peer may not open
//! - `peers`, a peer and its flows; `packets`, packets (datagrams, RFC 9221); `probed`, probes of
//!   the path; `recorded`, traces that operators request

mod events;
mod lines;
mod openings;
mod packets;
mod passing;
mod peers;
mod probed;
mod reach;
mod recorded;
mod resuming;
mod trouble;
mod turns;
mod unreached;

use std::{
    cell::RefCell,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    task::Waker,
    time::Duration,
};

use pep_core::{
    arena::name_hash, hosts::Host, key::PublicKey, pace::Line, stats::EndReason,
    stream_header::Opening,
};
use pepd_relay::flow::{Attached, FlowContext, FlowInfo, tells_all};
use tokio::time::Instant;
use tunnel::{
    class::Class,
    ecn::Ecn,
    endpoint::{Carrier, Counters, Endpoint, PeerId, Remote, Transmit},
    path::PathMemory,
    session::{LinkHint, Session, TooManyStreams},
    wire::{ResetCode, StreamId},
};

pub(super) use lines::Kind;
pub(super) use peers::Peers;
use turns::Turns;
use unreached::Looks;

use super::{
    credit::{self, Usage},
    far,
    flow::PackingBuffers,
    peers::Statuses,
    shards::{Datagram, Member},
    table::{Custody, FlowBuffers, Table},
    tcp::Connections,
};
use crate::{
    custody::{Answered, Reply},
    table::Key,
};

/// The endpoint and everything that belongs to it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) context: Arc<FlowContext>,
    pub(super) endpoint: Endpoint,
    pub(super) peers: Peers,
    pub(super) statuses: Statuses,
    /// Server legs of flows that peers open.
    pub(super) far: Rc<far::Sites>,
    /// Buffers shared by flows that compress.
    pub(super) packing_buffers: Rc<RefCell<PackingBuffers>>,
    /// Connections to peers behind networks that block UDP.
    pub(super) tcp: Connections,
    /// Custody of bytes while links are down.
    pub(super) custody: Rc<Custody>,
    /// The number of this thread among the tunnel threads, and its means to reach them.
    pub(super) member: Member,
    /// Start of the local clock.
    base: Instant,
    /// Waker of the driver when there may be something to send.
    pub(super) driver: Option<Waker>,
    /// Sender of the datagrams being handled.
    heard: Option<usize>,
    /// Latest time that the endpoint was given: its time never runs back.
    pub(super) latest: Duration,
    /// Time for which a datagram may wait for others, and when it was computed.
    wait: (Duration, Duration),
    /// The link is switched off by an operator.
    off: bool,
    /// A session that takes packets has begun.
    joined: bool,
    /// Peer whose packets go to hosts next.
    next_host: usize,
    /// Peer whose packets are settled next.
    next_settled: usize,
    /// Recorders of traces of all peers.
    recorded: Attached,
    /// Figures that are part of counters of all threads.
    counted: [u64; 5],
    /// Looks at hosts that one end does not reach.
    looks: Looks,
    /// Time of the present turn, and datagrams that wait.
    turns: Turns,
    /// Time that datagrams take in simulations.
    #[cfg(test)]
    pub(super) work: crate::rig::Work,
}

/// Reading of the local clock at its start, so that remembered times lie before it.
pub(super) const BEGINNING: Duration = Duration::from_secs(48 * 3600);

/// Divisor: bytes that wait for legs, of all hosts together, may be this part of a peer's credit.
const WAITING: u64 = 2;

/// Time for which [`Core::may_wait`] is computed once.
const WAIT_KNOWN_FOR: Duration = Duration::from_millis(10);

/// The core as shared by the tasks of one thread. Never borrowed across an await.
pub(super) type Shared = Rc<RefCell<Core>>;

impl Core {
    pub(super) fn new(
        context: Arc<FlowContext>,
        (endpoint, peers, statuses): (Endpoint, Peers, Statuses),
        far: far::Sites,
        tcp: Connections,
        custody: Rc<Custody>,
        member: Member,
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
            base: member.base(),
            member,
            driver: None,
            heard: None,
            latest: Duration::ZERO,
            wait: Default::default(),
            off: false,
            joined: false,
            next_host: 0,
            next_settled: 0,
            recorded: Attached::default(),
            counted: Default::default(),
            looks: Looks::default(),
            turns: Turns::default(),
            #[cfg(test)]
            work: Default::default(),
        }))
    }

    /// Permits a log line of that kind on a peer, or counts it as left out.
    pub(super) fn line(&mut self, index: usize, kind: Kind) -> Option<Line> {
        let now = self.now();
        self.peers.list[index].lines.next(kind, now)
    }

    /// Returns whether to log the end of a flow: of those that a peer opens or breaks off, not all.
    pub(super) fn tells_end(&mut self, index: usize, ends: &FlowInfo, reason: EndReason) -> bool {
        let now = self.now();
        let is_hosts = matches!(reason, EndReason::Closed | EndReason::ClientReset);
        ends.peer.is_none() && (is_hosts || tells_all())
            || self.peers.list[index].lines.tells_flow(now)
    }

    /// Returns the configured name of a peer.
    pub(super) fn peer_name(&self, index: usize) -> &str {
        &self.peers.list[index].config.name
    }

    /// Returns the peer with that [`name_hash`], and its name.
    pub(super) fn peer_of_hash(&self, hash: u64) -> Option<(usize, Arc<str>)> {
        let mut names = self.peers.list.iter().map(|peer| peer.config.name.as_str());
        let index = names.position(|name| name_hash(name) == hash)?;
        Some((index, self.peer_name(index).into()))
    }

    /// Returns the time on the local clock, which starts at [`BEGINNING`].
    pub(super) fn now(&self) -> Duration {
        BEGINNING + self.base.elapsed()
    }

    /// Calls a function with the state of each session's path and the key of its peer.
    pub(super) fn each_path(
        &mut self,
        mut with: impl FnMut(&PublicKey, &PathMemory, Option<Remote>),
    ) {
        for peer in &self.peers.list {
            let state = self.endpoint.peer_state(peer.id);
            let Some((heard, state)) = state.and_then(|state| Some((state.heard?, state))) else {
                continue;
            };
            // The next process calls the peer there, whoever has the address.
            let remote = state.remote.and_then(|remote| match remote.carrier {
                Carrier::Udp => state.proved.map(|address| Remote { address, ..remote }),
                Carrier::Tcp => Some(remote),
            });
            if let Some(session) = self.endpoint.session(peer.id) {
                with(&peer.config.public_key, &session.memory(heard), remote);
            }
        }
    }

    /// Calls `with` for each peer with its handshake counters.
    pub(super) fn each_counters(&self, mut with: impl FnMut(&PublicKey, Counters)) {
        for peer in &self.peers.list {
            if let Some(state) = self.endpoint.peer_state(peer.id) {
                with(&peer.config.public_key, state.counters);
            }
        }
    }

    /// Prefers these addresses, where peers were heard, while strangers cause load.
    pub(super) fn expect_from(&mut self, addresses: &[IpAddr]) {
        self.endpoint.expect_from(addresses.iter().copied());
        self.tcp.expect_from(addresses);
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

    /// Returns a flow's buffers with its stream and session, if it has one.
    fn joined(&mut self, key: Key) -> Option<(&mut FlowBuffers, &mut Session, StreamId)> {
        let peer = &mut self.peers.list[key.peer];
        let entry = peer.table.get(key.flow)?;
        let stream = entry.stream()?;
        Some((entry, self.endpoint.session(peer.id)?, stream))
    }

    /// Returns whether there is a session with the peer.
    pub(super) fn has_session(&mut self, peer: usize) -> bool {
        let id = self.peers.list[peer].id;
        self.endpoint.session(id).is_some()
    }

    /// Opens the first stream of an announced flow.
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

    /// Lets the held bytes of a flow that can wait go before those of later flows.
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

    /// Offers the leg's bytes to the session as far as they may soon be sent, and the leg's end.
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

    /// Handles the end of the leg's bytes.
    pub(super) fn finish(&mut self, key: Key) {
        if let Some(entry) = self.entry(key) {
            entry.finish();
        }
        self.advance(key);
    }

    /// Handles a completed or failed disk operation.
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
        // Its flow has ended in the meantime.
        if let Some(spot) = spot {
            custody.forget(spot);
        }
    }

    /// Handles `count` bytes taken by the leg. The peer may send up to `until`.
    pub(super) fn consumed(&mut self, key: Key, count: u64, until: u64) {
        let table = &mut self.peers.list[key.peer].table;
        table.on_consumed(key.flow, count);
        let stays_held = table.is_to_be_held(key.flow, true);
        if let Some((entry, session, stream)) = self.joined(key)
            && !(stays_held && session.is_held(stream))
        {
            session.allow(stream, entry.allowed_to(until));
            self.wake_driver();
        }
        self.grant(key.peer);
    }

    /// Counts decompressed bytes of a peer's flow: those of the stream, and what they became.
    /// Returns the time for which the latter wait.
    pub(super) fn on_unpacked(&mut self, peer: usize, packed: u64, plain: u64) -> Duration {
        let now = self.base.elapsed();
        self.peers.list[peer].expansion.wait(now, packed, plain)
    }

    /// Grants the peer the credit that it needs and that is free. To be called when more may be
    /// free, after bytes have left or arrived, and periodically.
    pub(super) fn grant(&mut self, index: usize) {
        let now = self.now();
        let peer = &self.peers.list[index];
        if let Some(session) = self.endpoint.session(peer.id) {
            let usage = Usage::new(session, &peer.table);
            let round = || credit::round(session);
            let until = self.peers.credits.grant(index, now, round, &usage);
            session.allow_session(until);
        }
        let part = self.peers.credits.most(index) / WAITING;
        self.peers.list[index].table.set_waiting_part(part);
    }

    /// Asks the peer to send no more of a flow's bytes for now, if too many [wait](Table) for legs
    /// of its host.
    pub(super) fn hold_if_needed(&mut self, index: usize, stream: StreamId) {
        let peer = &mut self.peers.list[index];
        if let Some(flow) = peer.table.flow_of(stream)
            && peer.table.is_to_be_held(flow, false)
            && let Some(session) = self.endpoint.session(peer.id)
            && session.hold(stream)
        {
            let counters = &self.context.counters;
            counters.update(|stats| stats.tunnel_flows_held += 1);
        }
    }

    /// Ends the flow, in order or with this code. Its leg is about to be closed.
    pub(super) fn conclude(&mut self, key: Key, code: Option<ResetCode>) {
        let how = code.unwrap_or(ResetCode::Ended);
        self.table(key.peer).conclude(key.flow, how);
    }

    /// Removes the flow. With a `code`, its stream is reset.
    pub(super) fn remove(&mut self, key: Key, code: Option<ResetCode>) {
        let waits = self.entry(key).is_some_and(|entry| entry.is_suspended());
        if waits && code.is_some() {
            // The far end still has the flow: a stream is opened only to reset it.
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

    /// Returns whether other addresses of the peer need no attempt: it is heard, or the link is
    /// switched off.
    pub(super) fn is_settled(&self, index: usize) -> bool {
        self.off || self.endpoint.is_well(self.now(), self.peers.list[index].id)
    }

    /// Returns the addresses at which a peer is called.
    pub(super) fn addresses(&self, index: usize) -> &[SocketAddr] {
        self.endpoint.addresses(self.peers.list[index].id)
    }

    /// Sets the addresses at which a peer is called.
    pub(super) fn set_addresses(&mut self, index: usize, addresses: &[SocketAddr]) {
        let (now, id) = (self.now(), self.peers.list[index].id);
        self.endpoint.set_addresses(now, id, addresses);
        self.wake_driver();
    }

    /// Lets time pass in a simulation.
    #[cfg(test)]
    pub(super) fn pass_time(&mut self, time: Duration) {
        self.base -= time;
    }

    /// Lets the time pass that a datagram from there takes.
    #[cfg(test)]
    fn simulate_work(&mut self, from: SocketAddr) {
        if let Some(cost) = self.work.costs.get(&from).copied() {
            self.pass_time(cost);
            let now = self.now();
            self.work.handled.entry(from).or_default().push(now);
        }
    }

    /// Resets a peer to the state of a newly added one, without a session.
    #[cfg(test)]
    pub(super) fn replace_peer(&mut self, index: usize, config: &tunnel::endpoint::PeerConfig) {
        let old = self.peers.list[index].id;
        self.endpoint.remove_peer(old);
        match self.endpoint.add_peer(config.clone()) {
            Ok(id) => self.peers.rename(index, id),
            Err(err) => tracing::error!(error = %err, "cannot re-add a peer"),
        }
        self.wake_driver();
    }

    /// Handles a report of the link's state from outside the sessions.
    pub(super) fn hint(&mut self, hint: LinkHint) {
        let now = self.now();
        let was_off = std::mem::replace(&mut self.off, hint == LinkHint::Off);
        for peer in &mut self.peers.list {
            if let Some(session) = self.endpoint.session(peer.id) {
                session.hint(now, hint);
            }
            if self.off {
                // The duration of the outage is unknown: hosts' bytes are kept at once.
                peer.table.set_link_down(true);
            } else if was_off && hint == LinkHint::Down {
                peer.silent_since.get_or_insert(self.base.elapsed());
            }
        }
        self.wake_driver();
    }

    /// Sends a close to all peers. No peer gets a new session.
    pub(super) fn close(&mut self) {
        self.endpoint.shut_down("pepd ends");
    }

    /// Returns how long datagrams of any peer that was heard lately may wait for others.
    pub(super) fn may_wait(&mut self, now: Duration) -> Duration {
        let (wait, computed) = self.wait;
        if now < computed + WAIT_KNOWN_FOR {
            return wait;
        }
        let wait = self.endpoint.may_wait(now);
        self.wait = (wait, now);
        wait
    }

    /// Handles a datagram that arrived at this time, or earlier than the endpoint's last event.
    pub(super) fn handle_datagram(
        &mut self,
        arrived: Duration,
        from: Remote,
        to: Option<IpAddr>,
        ecn: Ecn,
        datagram: &mut [u8],
    ) -> Option<PeerId> {
        let now = self.latest.max(arrived);
        self.latest = now;
        #[cfg(test)]
        self.simulate_work(from.address);
        let peers = &mut self.peers;
        let peer = self
            .endpoint
            .handle_datagram(now, from, ecn, datagram, peers);
        self.on_heard(peer?, to, datagram.len());
        peer
    }

    /// Handles an initiation that the first thread has admitted.
    fn handle_admitted(&mut self, initiation: &Datagram) {
        let now = self.latest.max(self.now());
        self.latest = now;
        let Datagram {
            from, to, bytes, ..
        } = initiation;
        if let Some(peer) = self.endpoint.handle_admitted(now, *from, bytes) {
            if from.carrier == Carrier::Tcp {
                self.tcp.on_offer(from.address, peer);
            }
            self.on_heard(peer, *to, bytes.len());
        }
    }

    /// Counts a datagram of a peer.
    fn on_heard(&mut self, peer: PeerId, to: Option<IpAddr>, length: usize) {
        let index = self.peers.index(peer);
        let shell = &mut self.peers.list[index];
        shell.heard = Some(self.latest);
        shell.received_bytes += length as u64;
        // Toward a peer that this end calls, the kernel chooses the source: the uplink may change.
        if to.is_some() && shell.config.endpoint.is_none() {
            shell.local = to;
        }
        if self.heard != Some(index) {
            self.grant_heard();
            self.heard = Some(index);
        }
    }

    /// Grants used credit again.
    fn grant_heard(&mut self) {
        if let Some(peer) = self.heard.take() {
            self.grant(peer);
        }
    }

    /// Appends the next due datagram to `out`. Returns its destination and source address.
    pub(super) fn poll_transmit(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
    ) -> Option<(Transmit, Option<IpAddr>)> {
        self.latest = self.latest.max(now);
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

    /// Handles a failed send. The source address may no longer be local.
    pub(super) fn on_send_failed(&mut self, to: SocketAddr) {
        for peer in &mut self.peers.list {
            let state = self.endpoint.peer_state(peer.id);
            if state.is_some_and(|state| state.remote == Some(to.into())) {
                peer.local = None;
            }
        }
    }
}

//! What the driver and the flows share: the endpoint, its peers, and their flows.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use pep_core::{config::Peer, greeting::Greeting};
use tunnel::{
    class::Class,
    endpoint::{Endpoint, PeerConfig, PeerEvent, PeerId, Stores},
    session::{Event, LinkHint, Session, TooManyStreams},
    wire::{CloseCode, ResetCode, StreamId},
};

use super::{
    far,
    peers::Statuses,
    table::{Entry, FlowId, Table},
};
use crate::flow::FlowContext;

/// A flow of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) peer: usize,
    pub(super) flow: FlowId,
}

/// One peer.
#[derive(Debug)]
pub(super) struct PeerShell {
    pub(super) id: PeerId,
    pub(super) config: Peer,
    pub(super) table: Table,
    /// Which of our addresses it writes to, so that our answers come from there.
    pub(super) local: Option<IpAddr>,
    /// Since when nothing comes from it, though there is a session.
    silent_since: Option<Duration>,
}

/// All peers, in the order of the configuration.
#[derive(Debug, Default)]
pub(super) struct Peers {
    list: Vec<PeerShell>,
    by_id: BTreeMap<PeerId, usize>,
}

impl Peers {
    pub(super) fn push(&mut self, id: PeerId, config: Peer, table: Table) {
        self.by_id.insert(id, self.list.len());
        self.list.push(PeerShell {
            id,
            config,
            table,
            local: None,
            silent_since: None,
        });
    }

    fn rename(&mut self, index: usize, id: PeerId) {
        let peer = &mut self.list[index];
        self.by_id.remove(&peer.id);
        self.by_id.insert(id, index);
        peer.id = id;
    }

    fn index(&self, id: PeerId) -> usize {
        *self.by_id.get(&id).expect("every peer was pushed")
    }

    pub(super) fn of_id(&mut self, id: PeerId) -> &mut PeerShell {
        let index = self.index(id);
        &mut self.list[index]
    }
}

impl Stores for Peers {
    type Store = Table;

    fn of(&mut self, peer: PeerId) -> &mut Table {
        &mut self.of_id(peer).table
    }
}

/// The endpoint and all that belongs to it.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) context: Arc<FlowContext>,
    pub(super) endpoint: Endpoint,
    pub(super) peers: Peers,
    pub(super) statuses: Statuses,
    /// For flows that the peers open.
    pub(super) far: Rc<far::Sites>,
    /// The beginning of time.
    base: Instant,
    /// Whom to tell that there may be something to send.
    pub(super) driver: Option<Waker>,
}

/// The core, as tasks of one thread share it. Never borrowed across an await.
pub(super) type Shared = Rc<RefCell<Core>>;

impl Core {
    pub(super) fn new(
        context: Arc<FlowContext>,
        endpoint: Endpoint,
        peers: Peers,
        statuses: Statuses,
        far: far::Sites,
    ) -> Shared {
        Rc::new(RefCell::new(Self {
            context,
            endpoint,
            peers,
            statuses,
            far: Rc::new(far),
            base: Instant::now(),
            driver: None,
        }))
    }

    /// The time since the core was made.
    pub(super) fn now(&self) -> Duration {
        self.base.elapsed()
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    pub(super) fn entry(&mut self, key: Key) -> Option<&mut Entry> {
        self.peers.list[key.peer].table.get(key.flow)
    }

    pub(super) fn table(&mut self, peer: usize) -> &mut Table {
        &mut self.peers.list[peer].table
    }

    /// The session of a flow's stream, if it has one.
    fn stream(&mut self, key: Key) -> Option<(&mut Session, StreamId)> {
        let peer = &mut self.peers.list[key.peer];
        let stream = peer.table.get(key.flow)?.stream?;
        Some((self.endpoint.session(peer.id)?, stream))
    }

    /// Whether there is a session with the peer.
    pub(super) fn has_session(&mut self, peer: usize) -> bool {
        let id = self.peers.list[peer].id;
        self.endpoint.session(id).is_some()
    }

    /// Opens a stream for a flow.
    pub(super) fn open(
        &mut self,
        key: Key,
        class: Class,
        site: u32,
        greeting: &Greeting,
    ) -> Result<(), TooManyStreams> {
        let peer = &mut self.peers.list[key.peer];
        let session = self.endpoint.session(peer.id).ok_or(TooManyStreams)?;
        let stream = session.open(class, site, &greeting.emit())?;
        peer.table.bind(key.flow, stream);
        self.wake_driver();
        Ok(())
    }

    /// The leg has given its bytes below this position.
    pub(super) fn written(&mut self, key: Key, until: u64) {
        if let Some((session, stream)) = self.stream(key) {
            session.written(stream, until);
            self.wake_driver();
        }
    }

    /// The leg has given its last byte.
    pub(super) fn finish(&mut self, key: Key) {
        if let Some((session, stream)) = self.stream(key) {
            session.finish(stream);
            self.wake_driver();
        }
    }

    /// The leg took `count` bytes, and the peer may send as far as `until`.
    pub(super) fn consumed(&mut self, key: Key, count: u64, until: u64) {
        let table = &mut self.peers.list[key.peer].table;
        table.on_consumed(count);
        let session_until = table.session_allowed();
        if let Some((session, stream)) = self.stream(key) {
            session.allow(stream, until);
            session.allow_session(session_until);
            self.wake_driver();
        }
    }

    /// The flow has ended, and if `code` says why not well, its stream with it.
    pub(super) fn remove(&mut self, key: Key, code: Option<ResetCode>) {
        let peer = &mut self.peers.list[key.peer];
        let stream = peer.table.remove(key.flow);
        let allowed = peer.table.session_allowed();
        if let Some(session) = self.endpoint.session(peer.id) {
            if let (Some(stream), Some(code)) = (stream, code) {
                session.reset(stream, code);
            }
            session.allow_session(allowed);
        }
        self.wake_driver();
    }

    /// Takes note of all that has happened.
    pub(super) fn dispatch(shared: &Shared) {
        loop {
            let core = &mut *shared.borrow_mut();
            let Some((id, event)) = core.endpoint.poll_event() else {
                return;
            };
            let index = core.peers.index(id);
            match event {
                PeerEvent::Session(event) => core.on_session_event(shared, index, event),
                event => core.on_peer_event(index, event),
            }
        }
    }

    fn on_peer_event(&mut self, index: usize, event: PeerEvent) {
        let peer = &mut self.peers.list[index];
        let name = peer.config.name.as_str();
        match event {
            PeerEvent::Up => {
                tracing::info!(peer = name, "peer is there: a session has begun");
                peer.silent_since = None;
                // It was cleared when the session began, before its first bytes were placed.
                peer.table.wake_waiting();
                self.set_here(index, true);
            }
            PeerEvent::Down(reason) => {
                let flows = peer.table.len();
                tracing::warn!(
                    peer = name,
                    ?reason,
                    flows,
                    "the session with a peer is over"
                );
                // Where the next one has begun already, the table is of that one.
                let next = self.endpoint.session(peer.id).is_some();
                if !next {
                    peer.table.on_restart();
                }
                self.set_here(index, next);
            }
            PeerEvent::Roamed(remote) => {
                let address = remote.address;
                tracing::info!(peer = name, %address, "peer sends from this address now");
            }
            PeerEvent::Failed(err) => {
                tracing::warn!(peer = name, error = %err, "no session with a peer");
            }
            PeerEvent::Session(_) => {}
        }
    }

    fn on_session_event(&mut self, shared: &Shared, index: usize, event: Event) {
        let now = self.now();
        let peer = &mut self.peers.list[index];
        let (name, table) = (peer.config.name.as_str(), &mut peer.table);
        match event {
            Event::Opened {
                stream, greeting, ..
            } => self.on_opened(shared, index, stream, &greeting),
            Event::Readable { stream, until } => table.on_readable(stream, until),
            Event::Acked { stream, until } => table.on_acked(stream, until),
            Event::Finished { stream } => table.on_finished(stream),
            Event::Reset { stream, code } => table.on_gone(stream, Some(code)),
            Event::Closed { stream } => {
                table.on_gone(stream, None);
                // Flows that wait for a stream may have its place.
                table.wake_waiting();
            }
            Event::LinkDown => {
                tracing::debug!(peer = name, "nothing comes from a peer any more");
                peer.silent_since = Some(now);
            }
            Event::LinkUp => {
                let silence = peer.silent_since.take().map(|since| now - since);
                tracing::debug!(peer = name, ?silence, "peer is heard again");
                if self.set_here(index, true) {
                    let name = self.peers.list[index].config.name.as_str();
                    tracing::info!(peer = name, ?silence, "peer is back: its flows go on");
                }
            }
            Event::PeerClosed { code, reason } => {
                tracing::info!(peer = name, ?code, reason, "peer has ended the session");
            }
        }
    }

    fn on_opened(&mut self, shared: &Shared, index: usize, stream: StreamId, greeting: &[u8]) {
        let peer = &mut self.peers.list[index];
        let flow = peer.table.opened(stream);
        let greeting = Greeting::parse(greeting);
        match (flow, greeting) {
            (Some(flow), Ok(greeting)) => {
                let key = Key { peer: index, flow };
                let permit = self.context.admission.admit();
                let counters = &self.context.counters;
                counters.update(|stats| stats.tunnel_flows_far += 1);
                let flow = far::serve(Rc::clone(shared), key, greeting, permit);
                tokio::task::spawn_local(flow);
            }
            (flow, greeting) => {
                let code = match greeting {
                    Err(err) => {
                        let peer = peer.config.name.as_str();
                        tracing::warn!(peer, error = %err, "a flow is refused");
                        ResetCode::Internal
                    }
                    Ok(_) => ResetCode::Limit,
                };
                self.refuse(index, stream, flow, code);
            }
        }
    }

    fn refuse(&mut self, peer: usize, stream: StreamId, flow: Option<FlowId>, code: ResetCode) {
        match flow {
            Some(flow) => self.remove(Key { peer, flow }, Some(code)),
            None => {
                let id = self.peers.list[peer].id;
                if let Some(session) = self.endpoint.session(id) {
                    session.reset(stream, code);
                }
                self.wake_driver();
            }
        }
    }

    /// Whether the peer is there from now on. Returns whether that is news.
    fn set_here(&mut self, index: usize, is_here: bool) -> bool {
        let is_news = self.statuses.set(index, is_here);
        let here = self.statuses.here() as u64;
        let counters = &self.context.counters;
        counters.update(|stats| stats.tunnel_peers_here = here);
        is_news
    }

    /// What is looked after every second.
    pub(super) fn tick(&mut self) {
        self.count_refused();
        let now = self.now();
        for index in 0..self.peers.list.len() {
            let peer = &self.peers.list[index];
            let silence = peer.silent_since.map(|since| now - since);
            if let Some(silence) = silence {
                self.on_silence(index, silence);
            }
        }
    }

    fn count_refused(&mut self) {
        let seen = self.endpoint.stats();
        let refused = seen.malformed
            + seen.unknown
            + seen.forged
            + seen.repeated
            + seen.not_for_us
            + seen.refused;
        let counters = &self.context.counters;
        counters.update(|stats| stats.tunnel_datagrams_refused = refused);
    }

    fn on_silence(&mut self, index: usize, silence: Duration) {
        let lost_after = self.peers.list[index].config.lost_after;
        if silence < lost_after || !self.set_here(index, false) {
            return;
        }
        let peer = &self.peers.list[index];
        let seconds = silence.as_secs();
        let (name, flows) = (peer.config.name.as_str(), peer.table.len());
        tracing::warn!(
            peer = name,
            seconds,
            flows,
            "peer is gone: its flows wait, new ones go as `on_peer_loss` says"
        );
    }

    /// A peer has another address, or has one at last. It has no session.
    pub(super) fn replace_peer(&mut self, index: usize, config: &PeerConfig) {
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
        for peer in &self.peers.list {
            if let Some(session) = self.endpoint.session(peer.id) {
                session.hint(now, hint);
            }
        }
        self.wake_driver();
    }

    /// Says good-bye to all peers.
    pub(super) fn close(&mut self) {
        for peer in &self.peers.list {
            if let Some(session) = self.endpoint.session(peer.id) {
                session.close(CloseCode::Shutdown, "pepd ends");
            }
        }
    }

    /// A datagram has arrived.
    pub(super) fn handle_datagram(
        &mut self,
        from: SocketAddr,
        to: Option<IpAddr>,
        marked: bool,
        datagram: &mut [u8],
    ) {
        let now = self.now();
        let peers = &mut self.peers;
        let peer = self
            .endpoint
            .handle_datagram(now, from, marked, datagram, peers);
        if let (Some(peer), Some(to)) = (peer, to) {
            peers.of_id(peer).local = Some(to);
        }
    }

    /// The next datagram to be sent now, behind what is in `out`: where to, and from which address.
    pub(super) fn poll_transmit(
        &mut self,
        out: &mut Vec<u8>,
    ) -> Option<(SocketAddr, Option<IpAddr>)> {
        let now = self.now();
        let transmit = self.endpoint.poll_transmit(now, out, &mut self.peers)?;
        let local = transmit
            .peer
            .and_then(|peer| self.peers.of_id(peer).local)
            .filter(|local| local.is_ipv4() == transmit.to.address.is_ipv4());
        Some((transmit.to.address, local))
    }

    /// It could not be sent there; perhaps the address is not ours any more from which it should have been.
    pub(super) fn on_send_failed(&mut self, to: SocketAddr) {
        for peer in &mut self.peers.list {
            let state = self.endpoint.peer_state(peer.id);
            if state.is_some_and(|state| state.remote == Some(to.into())) {
                peer.local = None;
            }
        }
    }
}

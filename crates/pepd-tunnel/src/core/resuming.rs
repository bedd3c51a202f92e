//! Resumption of flows in another session.
//!
//! When a session begins, each end opens a stream that lists how many of its flows resume, and then
//! one stream per flow. The other end thereby learns which of its flows have ended in the meantime.

use std::rc::Rc;

use pep_core::{
    arena::Kind,
    hosts::Host,
    pace::Line,
    reach::{Forbidden, Request},
    stream_header::{Opening, Resume, StreamHeader},
};
use pepd_relay::flow::rounds::in_rounds;
use tunnel::{
    class::Class,
    wire::{ResetCode, StreamId},
};

use super::{Core, Kind as LineKind, Shared};
use crate::{
    far, recover,
    table::{Disagreement, FlowId, Key, Known, Terms},
};

impl Core {
    /// Resumes the local end's flows in a new session. Returns their number. After several sessions
    /// in a row the flows resume in the last one only.
    pub(super) fn resume(&mut self, index: usize) -> usize {
        let peer = &mut self.peers.list[index];
        let Some(waiting) = peer.table.send_inventory() else {
            return 0;
        };
        let inventory = Opening::Inventory(waiting.len() as u64).emit();
        if let Some(session) = self.endpoint.session(peer.id)
            && let Ok(stream) = session.open(Class::Normal, 0, &inventory)
        {
            session.finish(stream);
        }
        for flow in &waiting {
            let flow = *flow;
            self.reopen(Key { peer: index, flow });
        }
        self.wake_driver();
        waiting.len()
    }

    /// Resumes flows for which there was no stream before.
    pub(super) fn resume_others(&mut self, index: usize) {
        for flow in self.peers.list[index].table.to_reopen() {
            if !self.reopen(Key { peer: index, flow }) {
                return;
            }
        }
    }

    /// Opens a stream that resumes a flow of the local end. Returns whether it did.
    pub(super) fn reopen(&mut self, key: Key) -> bool {
        let peer = &mut self.peers.list[key.peer];
        let Some(entry) = peer.table.get(key.flow) else {
            return true;
        };
        let (resume, announced) = (entry.resumption(), entry.announcement());
        let (Some(announced), Some(session)) = (announced, self.endpoint.session(peer.id)) else {
            return false;
        };
        let stream_header = StreamHeader {
            resume: Some(resume),
            ..announced.stream_header.clone()
        };
        let client = stream_header.client;
        let Resume { down, up, .. } = resume;
        let perhaps_new = resume.perhaps_new;
        let opening = Opening::Flow(stream_header).emit();
        let Ok(stream) = session.open(announced.class, announced.site, &opening) else {
            return false;
        };
        session.set_host(stream, Host::from_address(client.ip()).number());
        tracing::debug!(%client, stream, down, up, perhaps_new, "flow requests resumption");
        if let Some(receive) = peer.table.reopen(key.flow, stream) {
            session.limit_receive(stream, receive);
        }
        self.wake_driver();
        true
    }

    /// Handles the far end's offsets at which a flow resumes.
    pub(super) fn on_answer(&mut self, key: Key) {
        let Some((entry, _, stream)) = self.joined(key) else {
            return;
        };
        match entry.on_answer() {
            Ok(Some(terms)) => {
                self.resume_at(key.peer, stream, &terms);
                self.line_up(key);
            }
            Ok(None) => {}
            Err(err) => self.disagree(key, &err),
        }
    }

    fn resume_at(&mut self, index: usize, stream: StreamId, terms: &Terms) {
        let peer = &mut self.peers.list[index];
        tracing::debug!(stream, ?terms, "flow resumed");
        if let Some(session) = self.endpoint.session(peer.id) {
            session.limit_send(stream, terms.send);
            session.written(stream, terms.written);
            if terms.finished {
                session.finish(stream);
            }
        }
        let counters = &self.context.counters;
        counters.update(|stats| stats.tunnel_flows_resumed += 1);
        self.wake_driver();
    }

    /// Resets a flow: resuming it would lose or repeat bytes.
    fn disagree(&mut self, key: Key, err: &Disagreement) {
        if let Some(Line { left_out }) = self.line(key.peer, LineKind::Disagreed) {
            let peer = self.peer_name(key.peer);
            tracing::error!(peer, error = %err, left_out, "flow reset: it cannot resume in the next session");
        }
        let peer = &mut self.peers.list[key.peer];
        let stream = peer.table.abort(key.flow, ResetCode::Internal);
        if let Some(stream) = stream
            && let Some(session) = self.endpoint.session(peer.id)
        {
            session.reset(stream, ResetCode::Internal);
        }
    }

    /// Resumes a flow of the peer on this stream.
    pub(super) fn on_resumed(
        &mut self,
        shared: &Shared,
        index: usize,
        stream: StreamId,
        (stream_header, resume): (StreamHeader, Resume),
    ) {
        let table = &mut self.peers.list[index].table;
        let known = table.find(stream_header.token);
        let (client, Resume { down, up, .. }) = (stream_header.client, resume);
        let perhaps_new = resume.perhaps_new;
        tracing::debug!(%client, stream, down, up, perhaps_new, ?known, "peer requests resumption of a flow");
        match known {
            Known::Waiting(flow) => self.rejoin(index, flow, stream, &resume),
            Known::Bound => self.refuse(index, stream, ResetCode::Internal),
            Known::Ended(code) => self.refuse(index, stream, code),
            Known::Unknown if resume.perhaps_new => {
                if let Some(flow) = self.begin(shared, index, stream, stream_header) {
                    self.rejoin(index, flow, stream, &resume);
                }
            }
            Known::Unknown => self.refuse(index, stream, ResetCode::Restarted),
        }
        self.peers.list[index].table.on_resumed();
    }

    fn rejoin(&mut self, index: usize, flow: FlowId, stream: StreamId, resume: &Resume) {
        let peer = &mut self.peers.list[index];
        match peer.table.rejoin(flow, stream, resume) {
            Some(Ok(terms)) => {
                if let Some(session) = self.endpoint.session(peer.id) {
                    session.limit_receive(stream, terms.receive);
                }
                self.resume_at(index, stream, &terms);
            }
            Some(Err(err)) => self.disagree(Key { peer: index, flow }, &err),
            None => {}
        }
    }

    /// Serves a flow that the peer has opened, if it may and there is room.
    pub(super) fn begin(
        &mut self,
        shared: &Shared,
        index: usize,
        stream: StreamId,
        stream_header: StreamHeader,
    ) -> Option<FlowId> {
        // First, as it costs less than the questions to the kernel below: a peer may open far more
        // flows than it may have.
        let Some(flow) = self.peers.list[index].table.opened(stream) else {
            self.on_refused(index);
            self.refuse(index, stream, ResetCode::Limit);
            return None;
        };
        let request = Request {
            client: stream_header.client.ip(),
            destination: stream_header.destination,
            as_client: stream_header.as_client,
            compressed: stream_header.compressed,
        };
        if let Err(why) = self.may_open(index, &request) {
            self.on_forbidden(index, &stream_header, why);
            let code = match why {
                Forbidden::Compressed => ResetCode::Internal,
                _ => ResetCode::Unreachable,
            };
            self.refuse(index, stream, code);
            return None;
        }
        let peer = &mut self.peers.list[index];
        peer.table.introduce(flow, stream_header.token);
        let host = Host::from_address(stream_header.client.ip());
        peer.table.set_host(flow, host);
        if let Some(session) = self.endpoint.session(peer.id) {
            session.set_host(stream, host.number());
        }
        if let Some(entry) = peer.table.get(flow) {
            let name = &peer.config.name;
            let identity = recover::identity(Kind::Far, Class::Normal, name, &stream_header);
            entry.publish(&identity, None);
        }
        let key = Key { peer: index, flow };
        let permit = self.context.admission.admit(self.far.site_counters(), None);
        let counters = &self.context.counters;
        counters.update(|stats| stats.tunnel_flows_far += 1);
        let party = self.party(index, stream_header.client.ip());
        let flow = far::serve(Rc::clone(shared), key, stream_header, permit);
        tokio::task::spawn_local(in_rounds(party, flow));
        Some(key.flow)
    }
}

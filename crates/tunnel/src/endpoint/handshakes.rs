//! Received handshake messages.

use std::time::Duration;

use super::{
    Carrier, Endpoint, HandshakeError, Limits, PeerId, REPLIES, Remote, Reply, Stranger, Transmit,
    VERSION,
    datagram::{
        self, COOKIE, INITIATION_HEADER, INITIATION_LEN, INITIATION_SIGNED, Kind, RESPONSE,
        RESPONSE_HEADER, RESPONSE_LEN, RESPONSE_SIGNED,
    },
    guard::Admission,
    live::Generation,
    peer::{Arrival, Peer, Pending},
    terms::{TERMS_LEN, Terms},
};
use crate::{
    crypto::{MAC_LEN, Mac, Responding},
    ecn::Ecn,
};

impl Endpoint {
    pub(super) fn on_initiation(
        &mut self,
        now: Duration,
        from: Remote,
        sender: u32,
        datagram: &[u8],
    ) -> Option<PeerId> {
        let Some(mac1) = self.checked_mac1(datagram, INITIATION_SIGNED) else {
            self.strangers[Stranger::NotForUs as usize] = Some(from);
            return None;
        };
        let is_admitted_here = self.local.shard.is_first() || from.carrier == Carrier::Tcp;
        if self.local.ending || !is_admitted_here {
            self.stats.refused += 1;
            return None;
        }
        if self.guard.is_known(&mac1) {
            self.stats.repeated += 1;
            return None;
        }
        let (signed, mac2) = datagram.split_at(INITIATION_LEN - MAC_LEN);
        match self.guard.admit(now, from.address, signed, mac2) {
            Admission::Read => {
                let (handshake, terms) = self.read_initiation(datagram)?;
                self.guard.remember(mac1);
                self.admitted_for = self.elsewhere.get(&handshake.peer).copied();
                if self.admitted_for.is_some() {
                    return None;
                }
                self.on_call(now, from, sender, handshake, terms)
            }
            Admission::Cookie => {
                self.send_cookie(now, from, sender, &mac1);
                None
            }
            Admission::Ignore => {
                self.stats.refused += 1;
                None
            }
        }
    }

    /// Returns the first MAC, if it is valid.
    fn checked_mac1(&mut self, datagram: &[u8], signed: usize) -> Option<Mac> {
        let (signed, macs) = datagram.split_at_checked(signed)?;
        let mac1 = *macs.first_chunk()?;
        if !self.local.mac.verify(signed, &mac1) {
            self.stats.not_for_us += 1;
            return None;
        }
        Some(mac1)
    }

    fn send_cookie(&mut self, now: Duration, from: Remote, sender: u32, mac1: &Mac) {
        let mut reply = Vec::new();
        datagram::begin(COOKIE, sender, &mut reply);
        let cookie = self.guard.cookies.bake(now, from.address);
        let nonce = self.local.random();
        self.local.cookie.seal(nonce, mac1, cookie, &mut reply);
        self.stats.cookies += 1;
        self.reply(None, from, reply);
    }

    /// Handles an initiation that another shard has [admitted](Self::take_elsewhere) for this one.
    /// It is read again, but neither counted against limits nor recognised as repeated. Returns the
    /// peer, if it is answered.
    pub fn handle_admitted(
        &mut self,
        now: Duration,
        from: impl Into<Remote>,
        datagram: &[u8],
    ) -> Option<PeerId> {
        let Some(Kind::Initiation { sender }) = Kind::parse(datagram) else {
            self.stats.malformed += 1;
            return None;
        };
        if self.local.ending {
            self.stats.refused += 1;
            return None;
        }
        let (handshake, terms) = self.read_initiation(datagram)?;
        self.on_call(now, from.into(), sender, handshake, terms)
    }

    fn read_initiation(&mut self, datagram: &[u8]) -> Option<(Responding, Terms)> {
        self.stats.handshakes_read += 1;
        let (seed, mut payload) = (self.local.seed(), [0; TERMS_LEN]);
        let message = &datagram[INITIATION_HEADER..INITIATION_SIGNED];
        let us = &self.local.identity;
        let Ok(handshake) = Responding::read(us, seed, message, &mut payload) else {
            self.stats.forged += 1;
            return None;
        };
        Some((handshake, Terms::parse(&payload)))
    }

    /// Answers an initiation that was read, if a peer sent it and may call now.
    fn on_call(
        &mut self,
        now: Duration,
        from: Remote,
        sender: u32,
        handshake: Responding,
        terms: Terms,
    ) -> Option<PeerId> {
        let Some(id) = self.find_peer(&handshake.peer) else {
            self.stats.unknown_keys += 1;
            self.strangers[Stranger::UnknownKey as usize] = Some(from);
            return None;
        };
        let peer = self.slots[usize::from(id.slot())].peer_mut()?;
        if terms.version != VERSION {
            peer.failed(HandshakeError::Version(terms.version));
            return None;
        }
        if !peer.config.carriers.include(from.carrier) {
            return None;
        }
        if peer.calls_by(from.carrier) && peer.takes_precedence(now, &self.local.limits) {
            return None;
        }
        self.answer(now, from, sender, id, handshake, terms)
    }

    /// Offers keys to the sender of an initiation, which has the peer's private key or replays a
    /// recorded initiation.
    fn answer(
        &mut self,
        now: Duration,
        from: Remote,
        sender: u32,
        id: PeerId,
        handshake: Responding,
        terms: Terms,
    ) -> Option<PeerId> {
        let peer = self.slots[usize::from(id.slot())].peer_mut()?;
        let continues = terms.continues.filter(|session| peer.knows(*session));
        let next = match &peer.live {
            Some(live) if continues == Some(live.id) => live.next,
            _ => 0,
        };
        let offer = Terms::from_config(&peer.config.session, continues, next);
        let index = peer.new_index(&mut self.local);
        let mut reply = Vec::new();
        datagram::begin(RESPONSE, index, &mut reply);
        reply.extend_from_slice(&sender.to_be_bytes());
        let psk = &peer.config.psk;
        let keys = handshake.answer(psk, &offer.emit(), &mut reply).ok()?;
        let mac1 = peer.mac.mac(&reply);
        reply.extend_from_slice(&mac1);
        let generation = Generation {
            index,
            peer_index: sender,
            keys,
            base: if continues.is_some() { terms.next } else { 0 },
            ours: false,
            confirmed: false,
            since: now,
        };
        peer.offered(Pending {
            generation,
            by: from.carrier,
            at: Some(from),
            continues,
            terms,
        });
        self.stats.answered += 1;
        self.reply(Some(id), from, reply);
        Some(id)
    }

    pub(super) fn reply(&mut self, peer: Option<PeerId>, to: Remote, datagram: Vec<u8>) {
        if self.replies.len() < REPLIES {
            let ecn = Ecn::Ect0;
            let transmit = Transmit { peer, to, ecn };
            self.replies.push_back(Reply { transmit, datagram });
        }
    }

    pub(super) fn on_response(
        &mut self,
        arrival: &Arrival,
        sender: u32,
        datagram: &[u8],
    ) -> Option<PeerId> {
        let peer = self.owner(arrival.index)?;
        if !peer.initiations.has(arrival.index) {
            self.stats.repeated += 1;
            return None;
        }
        self.checked_mac1(datagram, RESPONSE_SIGNED)?;
        if self.local.ending || !self.responses.take(arrival.now) {
            self.stats.refused += 1;
            return None;
        }
        self.stats.handshakes_read += 1;
        let message = &datagram[RESPONSE_HEADER..RESPONSE_SIGNED];
        let limits = self.local.limits;
        let peer = self.owner(arrival.index)?;
        let id = peer.id;
        if !finish(peer, arrival, sender, message, &limits) {
            self.stats.forged += 1;
            return None;
        }
        Some(id)
    }

    pub(super) fn on_cookie(&mut self, arrival: &Arrival, datagram: &mut [u8]) -> Option<PeerId> {
        let peer = self.owner(arrival.index)?;
        let sealed = &mut datagram[INITIATION_HEADER..];
        let open = |mac1: &Mac| peer.cookie.open(mac1, sealed).ok();
        peer.initiations.on_cookie(arrival.now, arrival.index, open);
        None
    }
}

/// Handles the peer's answer to an initiation of the local end.
fn finish(
    peer: &mut Peer,
    arrival: &Arrival,
    sender: u32,
    message: &[u8],
    limits: &Limits,
) -> bool {
    let Some(sent) = peer.initiations.get(arrival.index) else {
        return false;
    };
    let (rtt, mut payload) = (arrival.now.saturating_sub(sent.sent), [0; TERMS_LEN]);
    let at = sent.to;
    let Ok(keys) = sent.handshake.finish(message, &mut payload) else {
        peer.failed(HandshakeError::Keys);
        return false;
    };
    let terms = Terms::parse(&payload);
    if terms.version != VERSION {
        peer.failed(HandshakeError::Version(terms.version));
        return true;
    }
    let generation = Generation {
        index: arrival.index,
        peer_index: sender,
        keys,
        base: if terms.continues.is_some() {
            terms.next
        } else {
            0
        },
        ours: true,
        confirmed: false,
        since: arrival.now,
    };
    let continues = terms.continues;
    let agreed = Pending {
        generation,
        by: arrival.from.carrier,
        at: Some(at),
        continues,
        terms,
    };
    peer.agreed(arrival.from, agreed, rtt, limits);
    peer.paths.on_received(arrival.from, RESPONSE_LEN);
    true
}

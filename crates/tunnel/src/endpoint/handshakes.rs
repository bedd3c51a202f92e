//! Received handshake messages.

use std::time::Duration;

use super::{
    COUNTER_MAX, Carrier, Endpoint, HandshakeError, Limits, PeerId, REPLIES, Remote, Reply,
    Stranger, Transmit, VERSION,
    datagram::{
        self, COOKIE, INITIATION_1_SIGNED, INITIATION_HEADER, INITIATION_LEN, INITIATION_SIGNED,
        Kind, RESPONSE, RESPONSE_HEADER, RESPONSE_LEN, RESPONSE_SIGNED,
    },
    guard::Admission,
    live::Generation,
    peer::{Answered, Arrival, Peer, Pending},
    terms::{TERMS_LEN, Terms},
};
use crate::{
    crypto::{Keys, MAC_LEN, Mac, Responding},
    ecn::Ecn,
};

/// An initiation that was read.
struct Call {
    from: Remote,
    sender: u32,
    mac1: Mac,
    handshake: Responding,
    terms: Terms,
}

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
        let (signed, mac2) = datagram.split_at(INITIATION_LEN - MAC_LEN);
        match self.guard.admit(now, from, signed, mac2) {
            Admission::Read => {
                let call = self.read_initiation(from, sender, datagram)?;
                self.admitted_for = self.elsewhere.get(&call.handshake.peer).copied();
                if self.admitted_for.is_some() {
                    return None;
                }
                self.on_call(now, call)
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

    /// Notes the sender of an initiation of protocol version 1, which cannot be answered.
    pub(super) fn on_initiation_1(&mut self, from: Remote, datagram: &[u8]) {
        self.stats.refused += 1;
        if self.checked_mac1(datagram, INITIATION_1_SIGNED).is_some() {
            self.strangers[Stranger::Version1 as usize] = Some(from);
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
    /// It is read again, but not counted against limits. Returns the peer, if keys are offered.
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
        let call = self.read_initiation(from.into(), sender, datagram)?;
        self.on_call(now, call)
    }

    fn read_initiation(&mut self, from: Remote, sender: u32, datagram: &[u8]) -> Option<Call> {
        self.stats.handshakes_read += 1;
        let (seed, mut payload) = (self.local.seed(), [0; TERMS_LEN]);
        let message = &datagram[INITIATION_HEADER..INITIATION_SIGNED];
        let us = &self.local.identity;
        let Ok(handshake) = Responding::read(us, seed, message, &mut payload) else {
            self.stats.forged += 1;
            return None;
        };
        Some(Call {
            from,
            sender,
            mac1: *datagram[INITIATION_SIGNED..].first_chunk()?,
            handshake,
            terms: Terms::parse(&payload),
        })
    }

    /// Answers an initiation that was read, if a peer sent it and may call now. Returns the peer if
    /// keys are offered.
    fn on_call(&mut self, now: Duration, call: Call) -> Option<PeerId> {
        let Some(id) = self.find_peer(&call.handshake.peer) else {
            self.stats.unknown_keys += 1;
            self.strangers[Stranger::UnknownKey as usize] = Some(call.from);
            return None;
        };
        let peer = self.slots[usize::from(id.slot())].peer_mut()?;
        let (by, counter) = (call.from.carrier, call.terms.counter);
        if !peer.config.carriers.include(by) {
            return None;
        }
        if now < peer.distrust.until() {
            self.stats.refused += 1;
            return None;
        }
        if call.terms.version != VERSION {
            peer.failed(HandshakeError::Version(call.terms.version));
            return self.refuse(id, call, 0);
        }
        if counter > COUNTER_MAX {
            peer.failed(HandshakeError::Counter);
            return None;
        }
        if peer.calls_by(by) && peer.takes_precedence(now, &self.local.limits) {
            return None;
        }
        if let Some(response) = peer.response_to(&call.mac1, call.from) {
            self.stats.repeated += 1;
            self.reply(Some(id), call.from, response);
            return None;
        }
        if let Err(answer) = peer.counters.accept(counter) {
            self.stats.repeated += 1;
            return self.refuse(id, call, answer);
        }
        if peer.is_elsewhere(now, call.from, call.terms.continues) {
            self.stats.refused += 1;
            self.strangers[Stranger::SecondHolder as usize] = Some(call.from);
            return None;
        }
        self.answer(now, id, call)
    }

    /// Offers keys to the sender of an initiation, which has the peer's private key or has held
    /// back this initiation.
    fn answer(&mut self, now: Duration, id: PeerId, call: Call) -> Option<PeerId> {
        let peer = self.slots[usize::from(id.slot())].peer_mut()?;
        let (from, sender, terms) = (call.from, call.sender, call.terms);
        let continues = terms.continues.filter(|session| peer.knows(*session));
        let next = match &peer.live {
            Some(live) if continues == Some(live.id) => live.next,
            _ => 0,
        };
        let offer = Terms::from_config(&peer.config.session, terms.counter, continues, next);
        let index = peer.new_index(&mut self.local);
        let (response, keys) = respond(peer, index, sender, call.handshake, &offer)?;
        let generation = Generation {
            index,
            peer_index: sender,
            keys,
            base: if continues.is_some() { terms.next } else { 0 },
            ours: false,
            confirmed: false,
            since: now,
        };
        let pending = Pending {
            generation,
            by: from.carrier,
            at: Some(from),
            continues,
            terms,
            said: offer.unreached,
            answered: Some(Answered {
                mac1: call.mac1,
                response: response.clone(),
            }),
        };
        peer.offered(pending);
        self.stats.answered += 1;
        self.reply(Some(id), from, response);
        Some(id)
    }

    /// Answers an initiation without an offer. `counter` is above that of the initiation, unless
    /// the versions differ. Returns `None`: the initiation may be a recorded one.
    fn refuse(&mut self, id: PeerId, call: Call, counter: u64) -> Option<PeerId> {
        let peer = self.slots[usize::from(id.slot())].peer_mut()?;
        let index = peer.new_index(&mut self.local);
        let terms = Terms::refusal(counter);
        let (response, _) = respond(peer, index, call.sender, call.handshake, &terms)?;
        self.reply(Some(id), call.from, response);
        None
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

/// Returns a response, and the keys that it agrees on.
fn respond(
    peer: &Peer,
    index: u32,
    receiver: u32,
    handshake: Responding,
    terms: &Terms,
) -> Option<(Vec<u8>, Keys)> {
    let mut response = Vec::new();
    datagram::begin(RESPONSE, index, &mut response);
    response.extend_from_slice(&receiver.to_be_bytes());
    let psk = &peer.config.psk;
    let keys = handshake.answer(psk, &terms.emit(), &mut response).ok()?;
    let mac1 = peer.mac.mac(&response);
    response.extend_from_slice(&mac1);
    Some((response, keys))
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
    let (at, counter, said) = (sent.to, sent.counter, sent.said);
    let Ok(keys) = sent.handshake.finish(message, &mut payload) else {
        peer.failed(HandshakeError::Keys);
        return false;
    };
    // Its handshake can read no other response.
    peer.initiations.answered(arrival.index);
    let terms = Terms::parse(&payload);
    if terms.version != VERSION {
        peer.failed(HandshakeError::Version(terms.version));
        return true;
    }
    if terms.counter != counter {
        peer.on_refusal(arrival, terms.counter);
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
        said,
        answered: None,
    };
    peer.agreed(arrival.from, agreed, rtt, limits);
    peer.paths.on_received(arrival.from, RESPONSE_LEN);
    true
}

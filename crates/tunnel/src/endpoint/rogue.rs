//! Packets past all checks, for peers of tests that break the protocol's rules.

use super::{
    Endpoint, PeerId,
    datagram::{self, DATA, DATA_HEADER, INITIATION, INITIATION_LEN},
    terms::TERMS_LEN,
};
use crate::{
    crypto::Initiating,
    wire::{DATAGRAM_OVERHEAD, expand},
};

impl Endpoint {
    /// Appends a DATA datagram with any packet under any number, sealed with the newest keys. The
    /// session does not learn of it. Returns false, and appends nothing, without a session.
    pub fn seal_any(&self, peer: PeerId, number: u64, packet: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(live) = self.live_peer(peer).and_then(|peer| peer.live.as_ref()) else {
            return false;
        };
        let (generation, start) = (live.current(), out.len());
        datagram::begin(DATA, generation.peer_index, out);
        out.extend_from_slice(&(number as u32).to_be_bytes());
        out.extend_from_slice(packet);
        generation.keys.seal(number, start, DATA_HEADER, out);
        true
    }

    /// Opens a DATA datagram under the newest keys, repeated or not; the session does not learn of
    /// it. Returns the number nearest to `expected`, and the packet. `None` if it is not sealed
    /// with these keys under that number.
    pub fn open_any<'a>(
        &self,
        peer: PeerId,
        expected: u64,
        datagram: &'a mut [u8],
    ) -> Option<(u64, &'a [u8])> {
        let generation = self.live_peer(peer)?.live.as_ref()?.current();
        if datagram.len() < DATAGRAM_OVERHEAD || datagram[0] != DATA {
            return None;
        }
        let low = datagram[DATA_HEADER - 4..].first_chunk()?;
        let number = expand(u32::from_be_bytes(*low), expected);
        let packet = generation.keys.open(number, DATA_HEADER, datagram).ok()?;
        Some((number, packet))
    }

    /// Appends an INITIATION with any terms, filled with zeros or cut to their length. Its answer
    /// cannot be used. Returns false, and appends nothing, if there is no such peer.
    pub fn initiate_any(&mut self, peer: PeerId, terms: &[u8], out: &mut Vec<u8>) -> bool {
        let (seed, index) = (self.local.seed(), self.local.random());
        let Some(peer) = self.live_peer(peer) else {
            return false;
        };
        let mut payload = [0; TERMS_LEN];
        for (to, from) in payload.iter_mut().zip(terms) {
            *to = *from;
        }
        let start = out.len();
        datagram::begin(INITIATION, u32::from_be_bytes(index), out);
        let (us, config) = (&self.local.identity, &peer.config);
        if Initiating::begin(us, &config.public_key, &config.psk, seed, &payload, out).is_err() {
            out.truncate(start);
            return false;
        }
        let mac1 = peer.mac.mac(&out[start..]);
        out.extend_from_slice(&mac1);
        // Without a cookie the second MAC is zeros.
        out.resize(start + INITIATION_LEN, 0);
        true
    }
}

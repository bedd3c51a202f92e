//! Decompression.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Config,
    codec::Codec,
    flag,
    header::{self, Fixed},
};
use crate::{
    booster::{Booster, Out},
    ip,
    packet::Packet,
    wire::{COMPRESSED, CONTEXT, CONTEXT_KNOWN, NO_CONTEXT, Reader},
};

/// Minimum interval between requests for a context.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Known contexts of a cid: the last two, so that reordering does no harm when the cid is
/// reassigned.
#[derive(Debug, Default)]
struct Slot {
    contexts: [Option<(u8, Fixed)>; 2],
    asked: Option<Duration>,
}

impl Slot {
    fn get(&self, generation: u8) -> Option<&Fixed> {
        let mut known = self.contexts.iter().flatten();
        known
            .find(|known| known.0 == generation)
            .map(|known| &known.1)
    }

    fn learn(&mut self, generation: u8, fixed: Fixed) {
        let mut known = self.contexts.iter_mut().flatten();
        if let Some(known) = known.find(|known| known.0 == generation) {
            known.1 = fixed;
            return;
        }
        self.contexts = [Some((generation, fixed)), self.contexts[0]];
    }

    fn is_to_ask(&mut self, now: Duration) -> bool {
        let recent = |asked| now.saturating_sub(asked) < ASK_AGAIN;
        let ask = !self.asked.is_some_and(recent);
        if ask {
            self.asked = Some(now);
        }
        ask
    }
}

/// Reason why a message cannot be decoded.
enum Refusal {
    /// Malformed.
    Malformed,
    /// Unknown context.
    Unknown { cid: u16, generation: u8 },
}

/// Decodes messages into exactly the original packets. Keeps up to [`Config::FLOWS_MAX`] pairs of
/// contexts, of some 120 bytes each.
#[derive(Debug, Default)]
pub struct Receiver {
    slots: BTreeMap<u16, Slot>,
    codec: Codec,
    rebuilt: u64,
    contexts: u64,
    unknown: u64,
    malformed: u64,
    asked: u64,
    /// Context that has just come, to be confirmed to its sender.
    learnt: Option<(u16, u8)>,
}

impl Receiver {
    /// Creates a receiver without contexts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut reader = Reader(message);
        let (kind, flags) = (reader.u8(), reader.u8());
        let flags = flags.filter(|flags| flags & flag::SPARE == 0);
        let flags = flags.ok_or(Refusal::Malformed)?;
        if flags & flag::HEADERS == 0 {
            if kind == Some(CONTEXT) {
                return Err(Refusal::Malformed);
            }
            return self.packet(flags, reader.0).ok_or(Refusal::Malformed);
        }
        let wide = flags & flag::WIDE != 0;
        let cid = if wide {
            reader.u16()
        } else {
            reader.u8().map(u16::from)
        };
        let (cid, generation) = cid.zip(reader.u8()).ok_or(Refusal::Malformed)?;
        if kind == Some(CONTEXT) {
            let packet = self.packet(flags, reader.0).ok_or(Refusal::Malformed)?;
            self.learn(cid, generation, &packet);
            return Ok(packet);
        }
        let slot = self.slots.get(&cid);
        let fixed = *slot
            .and_then(|slot| slot.get(generation))
            .ok_or(Refusal::Unknown { cid, generation })?;
        self.rebuild(flags, &fixed, reader)
            .ok_or(Refusal::Malformed)
    }

    /// Returns the rest of the message as an IP packet.
    fn packet(&mut self, flags: u8, bytes: &[u8]) -> Option<Vec<u8>> {
        let bytes = if flags & flag::ZSTD != 0 {
            self.codec.unpack(bytes)?
        } else {
            bytes
        };
        ip::version(bytes)?;
        Some(bytes.to_vec())
    }

    fn learn(&mut self, cid: u16, generation: u8, packet: &[u8]) {
        self.contexts += 1;
        if let Some(parts) = header::split(packet)
            && usize::from(cid) < Config::FLOWS_MAX
        {
            let slot = self.slots.entry(cid).or_default();
            slot.learn(generation, parts.fixed);
            self.learnt = Some((cid, generation));
        }
    }

    fn rebuild(&mut self, flags: u8, fixed: &Fixed, mut reader: Reader<'_>) -> Option<Vec<u8>> {
        let id = if flags & flag::ID != 0 {
            reader.u16()?
        } else {
            0
        };
        let transport = header::read_transport(fixed, &mut reader)?;
        let payload = if flags & flag::ZSTD != 0 {
            self.codec.unpack(reader.0)?
        } else {
            reader.0
        };
        header::join(fixed, flags & flag::ECN, id, &transport, payload)
    }

    fn on_unknown(&mut self, now: Duration, cid: u16, generation: u8, out: &mut Out) {
        self.unknown += 1;
        if usize::from(cid) >= Config::FLOWS_MAX {
            return;
        }
        if self.slots.entry(cid).or_default().is_to_ask(now) {
            out.down.push(reply(now, NO_CONTEXT, cid, generation));
            self.asked += 1;
        }
    }
}

fn reply(now: Duration, kind: u8, cid: u16, generation: u8) -> Packet {
    let [high, low] = cid.to_be_bytes();
    Packet::new(vec![kind, high, low, generation], now)
}

impl Booster for Receiver {
    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if !matches!(packet.bytes.first(), Some(&(COMPRESSED | CONTEXT))) {
            out.up.push(packet);
            return;
        }
        match self.read(&packet.bytes) {
            Ok(bytes) => {
                self.rebuilt += 1;
                out.up.push(packet.with_bytes(bytes));
                // Confirmed each time: contexts are rare, and replies get lost.
                if let Some((cid, generation)) = self.learnt.take() {
                    out.down.push(reply(now, CONTEXT_KNOWN, cid, generation));
                }
            }
            Err(Refusal::Malformed) => self.malformed += 1,
            Err(Refusal::Unknown { cid, generation }) => {
                self.on_unknown(now, cid, generation, out);
            }
        }
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("rebuilt", self.rebuilt);
        each("contexts", self.contexts);
        each("unknown", self.unknown);
        each("malformed", self.malformed);
        each("requests", self.asked);
        each("flows", self.slots.len() as u64);
    }
}

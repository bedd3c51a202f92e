//! Writer of packet files (PCAP Next Generation, draft-ietf-opsawg-pcapng): one section with a
//! comment, a block for each interface, and packets. Numbers are in the machine's byte order, which
//! readers have to accept.

use std::time::Duration;

/// Block types (section 4).
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Option codes (sections 3.5, 4.1, 4.2, 4.3).
const END: u16 = 0;
const COMMENT: u16 = 1;
const PROGRAM: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const NANOSECONDS: u8 = 9;
/// Link type of packets with the cooked header of Linux (LINKTYPE_LINUX_SLL). libpcap rejects files
/// of two interfaces with LINKTYPE_RAW, for which it has another number internally.
const COOKED: u16 = 113;
/// Bytes of the type and both lengths of a block.
const FRAME: u64 = 12;
/// Bytes of a packet block besides the packet: interface, time, two lengths, flags, end of options.
const PACKET_HEAD: u64 = FRAME + 20 + 8 + 4;

/// Returns the bytes of the file that the kept bytes of a packet take.
pub fn packet_length(kept: usize) -> u64 {
    PACKET_HEAD + (kept as u64).next_multiple_of(4)
}

/// Encoder that produces the file block by block.
#[derive(Debug)]
pub struct Writer {
    /// Blocks since [`Self::clear`].
    blocks: Vec<u8>,
    length: u64,
    interfaces: u32,
    snaplen: u32,
}

impl Writer {
    /// Begins a file with a comment. `snaplen` is the maximum length of its packets.
    pub fn new(comment: &str, snaplen: u32) -> Self {
        let mut writer = Self {
            blocks: Vec::new(),
            length: 0,
            interfaces: 0,
            snaplen,
        };
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_ne_bytes());
        // Version 1.0, section of unknown length.
        body.extend([1_u16, 0].map(u16::to_ne_bytes).concat());
        body.extend((-1_i64).to_ne_bytes());
        option(&mut body, COMMENT, comment.as_bytes());
        let program = concat!("pepd ", env!("CARGO_PKG_VERSION"));
        option(&mut body, PROGRAM, program.as_bytes());
        option(&mut body, END, &[]);
        writer.block(SECTION, &body);
        writer
    }

    /// Returns the bytes of the whole file so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the complete blocks since [`Self::clear`].
    pub fn blocks(&self) -> &[u8] {
        &self.blocks
    }

    /// Discards the blocks after they were written.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Adds an interface. Returns its index, from 0.
    pub fn interface(&mut self, name: &str) -> u32 {
        let mut body = Vec::new();
        body.extend([COOKED, 0].map(u16::to_ne_bytes).concat());
        body.extend(self.snaplen.to_ne_bytes());
        option(&mut body, NAME, name.as_bytes());
        option(&mut body, RESOLUTION, &[NANOSECONDS]);
        option(&mut body, END, &[]);
        self.block(INTERFACE, &body);
        self.interfaces += 1;
        self.interfaces - 1
    }

    /// Adds a packet with its kept bytes and its time since 1970.
    pub fn packet(
        &mut self,
        interface: u32,
        at: Duration,
        kept: &[u8],
        length: usize,
        is_outgoing: bool,
    ) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let mut body = Vec::with_capacity(kept.len() + 64);
        for word in [
            interface,
            (at >> 32) as u32,
            at as u32,
            kept.len() as u32,
            length as u32,
        ] {
            body.extend(word.to_ne_bytes());
        }
        body.extend(kept);
        pad(&mut body);
        let direction: u32 = if is_outgoing { 2 } else { 1 };
        option(&mut body, FLAGS, &direction.to_ne_bytes());
        option(&mut body, END, &[]);
        self.block(PACKET, &body);
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let length = FRAME + body.len() as u64;
        let word = (length as u32).to_ne_bytes();
        self.blocks.extend(kind.to_ne_bytes());
        self.blocks.extend(word);
        self.blocks.extend(body);
        self.blocks.extend(word);
        self.length += length;
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    // All options of this writer are short.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    pad(body);
}

/// Pads to a multiple of four bytes, at which blocks and their parts begin.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_follow_each_other_and_are_as_long_as_told() {
        let mut writer = Writer::new("a flow", 100);
        let mut file = writer.blocks().to_vec();
        writer.clear();
        let lan = writer.interface("lan0");
        let link = writer.interface("sat0");
        assert_eq!((lan, link), (0, 1));
        for kept in 0..5 {
            let before = writer.length();
            let bytes = [7; 5];
            let at = Duration::new(1_795_435_201, 123_456_789);
            writer.packet(link, at, &bytes[..kept], 1500, true);
            assert_eq!(writer.length() - before, packet_length(kept));
        }
        file.extend(writer.blocks());
        assert_eq!(file.len() as u64, writer.length());
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < file.len() {
            let length = word(at + 4) as usize;
            assert_eq!((word(at + length - 4) as usize, length % 4), (length, 0));
            kinds.push(word(at));
            at += length;
        }
        assert_eq!(kinds, [SECTION, 1, 1, 6, 6, 6, 6, 6]);
    }
}

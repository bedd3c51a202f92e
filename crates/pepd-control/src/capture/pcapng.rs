//! A file of packets (PCAP Next Generation, draft-ietf-opsawg-pcapng): one section with a comment, an interface for each that
//! packets are from, and packets. In the byte order of this machine, as readers have to accept.

use std::time::Duration;

/// Types of blocks (4).
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Options (3.5, 4.1, 4.2, 4.3).
const END: u16 = 0;
const COMMENT: u16 = 1;
const PROGRAM: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const NANOSECONDS: u8 = 9;
/// Packets begin with the header that Linux gives to those of any interface (LINKTYPE_LINUX_SLL). Without one (LINKTYPE_RAW),
/// libpcap reads no file of two interfaces: it has another number for that within.
const COOKED: u16 = 113;
/// Of a block: its type, and its length at both ends.
const FRAME: u64 = 12;
/// Of a packet's block besides the packet: interface, time, two lengths, flags, the end of options.
const PACKET_HEAD: u64 = FRAME + 20 + 8 + 4;

/// How many bytes of a file so many bytes of a packet take.
pub fn packet_length(kept: usize) -> u64 {
    PACKET_HEAD + (kept as u64).next_multiple_of(4)
}

/// Makes such a file, block by block.
#[derive(Debug)]
pub struct Writer {
    /// Those since [`Self::clear`].
    blocks: Vec<u8>,
    length: u64,
    interfaces: u32,
    snaplen: u32,
}

impl Writer {
    /// Begins with a comment. Packets have `snaplen` bytes at most.
    pub fn new(comment: &str, snaplen: u32) -> Self {
        let mut writer = Self {
            blocks: Vec::new(),
            length: 0,
            interfaces: 0,
            snaplen,
        };
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_ne_bytes());
        // Version 1.0, of a length that is not known.
        body.extend([1_u16, 0].map(u16::to_ne_bytes).concat());
        body.extend((-1_i64).to_ne_bytes());
        option(&mut body, COMMENT, comment.as_bytes());
        let program = concat!("pepd ", env!("CARGO_PKG_VERSION"));
        option(&mut body, PROGRAM, program.as_bytes());
        option(&mut body, END, &[]);
        writer.block(SECTION, &body);
        writer
    }

    /// Bytes of the whole file so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The blocks that were made last, all of them whole.
    pub fn blocks(&self) -> &[u8] {
        &self.blocks
    }

    /// These are written: the next ones come after them.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Another interface. Returns its number, from 0.
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

    /// A packet, of which this is kept, seen at a time since 1970.
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
    // Ours are short.
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    pad(body);
}

/// Blocks begin, and so their parts, at multiples of four bytes.
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

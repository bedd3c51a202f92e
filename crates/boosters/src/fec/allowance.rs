//! Limit of the FEC overhead.

/// Repair packets that may come at once, beyond those of a whole block or of all interleaved
/// blocks.
const BURST: f64 = 8.0;

/// Byte budget of repair packets. Each protected message adds its share. A repair packet is as long
/// as the longest message that it covers, and costs its whole length. So FEC over messages of
/// varied lengths takes no more of the link than configured.
///
/// Messages must be counted as if their headers were as long as those of repair packets. Otherwise
/// the few bytes of difference add up, and deny messages of one length the last repair packet of
/// their share from time to time.
#[derive(Debug)]
pub(super) struct Allowance {
    share: f64,
    /// Repair packets that may come at once.
    burst: f64,
    /// Longest message so far.
    longest: usize,
    bytes: f64,
}

impl Allowance {
    /// Creates a budget of `share` bytes per byte, where the repair packets of `messages` messages
    /// come at once.
    pub(super) fn new(share: f64, messages: usize) -> Self {
        Self {
            share,
            burst: BURST + messages as f64 * share,
            longest: 0,
            bytes: 0.0,
        }
    }

    /// Adds the share of a protected message of `len` bytes.
    pub(super) fn earn(&mut self, len: usize) {
        if len > self.longest {
            // As after a pause.
            self.bytes += self.burst * (len - self.longest) as f64;
            self.longest = len;
        }
        let most = self.burst * self.longest as f64;
        self.bytes = (self.bytes + self.share * len as f64).min(most);
    }

    /// Deducts a repair packet of `len` bytes. Returns false if the budget does not suffice.
    pub(super) fn spend(&mut self, len: usize) -> bool {
        let enough = self.bytes >= len as f64;
        if enough {
            self.bytes -= len as f64;
        }
        enough
    }
}

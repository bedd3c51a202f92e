//! How much overcode there may be.

/// Repair packets that may come at once beyond those of a whole block, or of all that are interleaved.
const BURST: f64 = 8.0;

/// What repair packets may still cost, in bytes. Each message that is protected earns its share, and a repair packet, which is as long as the
/// longest message that it is over, costs all of itself. So overcode over messages of many lengths takes no more of the link than is allowed.
///
/// Messages have to be counted as if their headers were as long as those of repair packets: otherwise these few bytes would add up, and
/// now and then deny messages of one length the last repair packet of their share.
#[derive(Debug)]
pub(super) struct Allowance {
    share: f64,
    /// Repair packets that may come at once.
    burst: f64,
    /// The longest message so far.
    longest: usize,
    bytes: f64,
}

impl Allowance {
    /// For so many bytes per byte, where the repair packets of so many messages come at once.
    pub(super) fn new(share: f64, messages: usize) -> Self {
        Self {
            share,
            burst: BURST + messages as f64 * share,
            longest: 0,
            bytes: 0.0,
        }
    }

    /// A message of so many bytes is protected.
    pub(super) fn earn(&mut self, len: usize) {
        if len > self.longest {
            // As if there had been a pause before the first one.
            self.bytes += self.burst * (len - self.longest) as f64;
            self.longest = len;
        }
        let most = self.burst * self.longest as f64;
        self.bytes = (self.bytes + self.share * len as f64).min(most);
    }

    /// Whether a repair packet of so many bytes may be sent; it is counted then.
    pub(super) fn spend(&mut self, len: usize) -> bool {
        let enough = self.bytes >= len as f64;
        if enough {
            self.bytes -= len as f64;
        }
        enough
    }
}

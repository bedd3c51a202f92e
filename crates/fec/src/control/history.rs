use super::Counts;

/// Minimum packets of a piece of counts, so that the work for each packet is small.
pub(super) const PIECE_PACKETS: u64 = 64;

/// Upper bound of packets per report, more than any link carries between two. Limits larger claims,
/// so that sums stay in range.
const PACKETS_MAX: u64 = 1 << 48;

/// Maximum number of pieces. With that many, each is short compared with its age.
const PIECES_MAX: usize = 64;

/// Certainty of a change in loss before earlier counts are dropped: the logarithm of the likelihood
/// ratio. For a test of one possible place that is an error rate of `exp(-13)`.
const CHANGE: f64 = 13.0;

/// Certainty below which an assumed change is doubtful.
const DOUBT: f64 = 4.0;

/// Minimum bursts of a rise. One or two on an unchanged link are no reason to drop earlier counts.
const RISE_BURSTS: u64 = 3;

/// Loss counts of recent packets, since the last change of the link.
///
/// Old pieces are joined so that their length stays in proportion to their age. Whenever a piece is
/// complete, each border between two pieces is tested as a place where the link changed. The test
/// is the generalised likelihood ratio of Gilbert's chain with its two parameters: the probability
/// that a burst follows a received packet, and that it continues after a lost one. If they differ
/// on the two sides, older pieces are dropped, as are pieces older than `memory` packets.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Pieces, the oldest first.
    pieces: Vec<Counts>,
    total: Counts,
    /// Counts dropped because of the last change, if they just precede the pieces.
    before: Counts,
    memory: u64,
}

/// Result of adding counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing to evaluate.
    None,
    /// A piece is complete.
    Piece,
    /// A piece is complete, and loss has fallen.
    Fall,
}

impl History {
    pub(super) fn new(memory: u64) -> Self {
        Self {
            pieces: Vec::with_capacity(PIECES_MAX + 2),
            total: Counts::default(),
            before: Counts::default(),
            memory: memory.min(PACKETS_MAX),
        }
    }

    /// Sum of all pieces.
    pub(super) fn total(&self) -> Counts {
        self.total
    }

    pub(super) fn add(&mut self, counts: Counts) -> News {
        let counts = counts.at_most(PACKETS_MAX);
        match self.pieces.last_mut() {
            Some(last) if last.packets() < PIECE_PACKETS => *last += counts,
            _ => self.pieces.push(counts),
        }
        self.total += counts;
        if self
            .pieces
            .last()
            .is_none_or(|last| last.packets() < PIECE_PACKETS)
        {
            return News::None;
        }
        let news = self.forget_what_was_before_a_change();
        self.think_again_about_last_change();
        self.forget_what_is_too_old();
        self.join_pieces();
        news
    }

    /// Copies another history, without allocating.
    pub(super) fn restore(&mut self, other: &Self) {
        self.pieces.clone_from(&other.pieces);
        (self.total, self.before) = (other.total, other.before);
    }

    fn forget_what_was_before_a_change(&mut self) -> News {
        let Some(border) = self.find_change() else {
            return News::Piece;
        };
        self.before = Counts::default();
        self.forget_before(border);
        if self.total.loss() < self.before.loss() {
            News::Fall
        } else {
            News::Piece
        }
    }

    /// Reconsiders the last change. Later counts show more clearly where it was, as the first
    /// pieces may fit better to the time before. They may also show that there was none; the
    /// dropped counts then return.
    fn think_again_about_last_change(&mut self) {
        if self.before.packets() == 0 {
            return;
        }
        let border = self.find_better_border();
        self.forget_before(border);
        let ratio =
            likelihood(self.before) + likelihood(self.total) - likelihood(self.before + self.total);
        if ratio < DOUBT {
            let before = std::mem::take(&mut self.before).at_most(self.memory);
            self.pieces.insert(0, before);
            self.total += before;
        }
    }

    fn find_better_border(&self) -> usize {
        let (mut moved, mut best) = (Counts::default(), 0);
        let mut best_fit = likelihood(self.before) + likelihood(self.total);
        for (border, piece) in (1..).zip(&self.pieces[..self.pieces.len() - 1]) {
            moved += *piece;
            let fit = likelihood(self.before + moved) + likelihood(self.total.minus(moved));
            if fit > best_fit {
                (best, best_fit) = (border, fit);
            }
        }
        best
    }

    /// Drops the pieces before the change at this border.
    fn forget_before(&mut self, border: usize) {
        for piece in self.pieces.drain(..border) {
            self.total = self.total.minus(piece);
            self.before += piece;
        }
    }

    /// Returns the most likely place of a change, if one is certain.
    fn find_change(&self) -> Option<usize> {
        if self.total.lost() == 0 {
            return None;
        }
        let together = likelihood(self.total);
        let (mut before, mut best, mut best_ratio) = (Counts::default(), None, CHANGE);
        for (border, piece) in (1..).zip(&self.pieces[..self.pieces.len() - 1]) {
            before += *piece;
            let after = self.total.minus(before);
            let ratio = likelihood(before) + likelihood(after) - together;
            let enough = after.bursts() >= RISE_BURSTS || after.loss() < before.loss();
            if enough && ratio > best_ratio {
                (best, best_ratio) = (Some(border), ratio);
            }
        }
        best
    }

    fn forget_what_is_too_old(&mut self) {
        let mut rest = self.total.packets();
        let too_old = |piece: &&Counts| {
            rest -= piece.packets();
            rest >= self.memory
        };
        let count = self.pieces.iter().take_while(too_old).count();
        if count > 0 {
            self.forget_before(count);
            self.before = Counts::default();
        }
    }

    /// Joins neighbours, starting with those that are shortest compared with the time since their
    /// end.
    fn join_pieces(&mut self) {
        while self.pieces.len() > PIECES_MAX {
            self.join_two();
        }
    }

    fn join_two(&mut self) {
        let (mut age, mut best, mut best_share) = (1, 0, f64::INFINITY);
        for (index, pair) in self.pieces.windows(2).enumerate().rev() {
            let share = (pair[0].packets() + pair[1].packets()) as f64 / age as f64;
            if share < best_share {
                (best, best_share) = (index, share);
            }
            age += pair[1].packets();
        }
        let newer = self.pieces.remove(best + 1);
        self.pieces[best] += newer;
    }
}

/// Logarithm of the likelihood of these losses on the best fitting Gilbert channel.
fn likelihood(counts: Counts) -> f64 {
    let bursts = counts.bursts() as f64;
    binomial_likelihood(bursts, counts.received() as f64)
        + binomial_likelihood(bursts, counts.lost() as f64)
}

/// Logarithm of the probability that an event happens in exactly these `count` of `trials` trials,
/// if its probability is `count / trials`.
pub(super) fn binomial_likelihood(count: f64, trials: f64) -> f64 {
    let rest = trials - count;
    if count <= 0.0 || rest <= 0.0 {
        return 0.0;
    }
    count * (count / trials).ln() + rest * (rest / trials).ln()
}

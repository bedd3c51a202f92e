use super::Counts;

/// Counts are gathered in pieces of at least as many packets, so that the work for each packet is
/// small.
pub(super) const PIECE_PACKETS: u64 = 64;

/// More packets than any link brings between two reports: what claims more is taken for this many,
/// so that sums of them stay in range.
const PACKETS_MAX: u64 = 1 << 48;

/// How many pieces are told apart. With as many, each is short compared with its age.
const PIECES_MAX: usize = 64;

/// How sure it must be that loss has changed before what was before is forgotten: the logarithm of
/// the likelihood ratio. As a test of one place where it might have changed that is an error of
/// `exp(-13)`.
const CHANGE: f64 = 13.0;

/// Below this it is doubtful whether it has changed after all.
const DOUBT: f64 = 4.0;

/// Bursts after a rise. One or two on a link that is as good as ever are no reason to forget that.
const RISE_BURSTS: u64 = 3;

/// What became of the most recent packets, for as long as the link has been as it is now.
///
/// Old pieces are joined so that their length stays in proportion to their age. Whenever a piece is
/// complete, each border between two pieces is tested for being the place where the link changed:
/// with the generalised likelihood ratio of Gilbert's chain, which has two parameters (how often a
/// burst follows a received packet, how often it goes on after a lost one). If they differ on the two
/// sides, what is older is forgotten; so is what is older than `memory` packets.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Oldest first.
    pieces: Vec<Counts>,
    total: Counts,
    /// What was forgotten because of the last change, if it just precedes the pieces.
    before: Counts,
    memory: u64,
}

/// What more counts have brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing that it is worth while to look at.
    None,
    /// A piece is complete.
    Piece,
    /// And loss has fallen.
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

    /// All that is remembered.
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

    /// Copies another one, without allocating.
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

    /// What comes after a change shows more clearly where it was, as the first pieces may fit better to
    /// what was before; or that there was none, and that what was before is to be remembered again.
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

    /// What is before this piece was before the change.
    fn forget_before(&mut self, border: usize) {
        for piece in self.pieces.drain(..border) {
            self.total = self.total.minus(piece);
            self.before += piece;
        }
    }

    /// The most likely place of a change, if it is certain that there was one.
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

    /// Joins neighbours, those first that are shortest, compared with how long ago they end.
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

/// The logarithm of how likely these losses are on the channel of Gilbert's that fits them best.
fn likelihood(counts: Counts) -> f64 {
    let bursts = counts.bursts() as f64;
    binomial_likelihood(bursts, counts.received() as f64)
        + binomial_likelihood(bursts, counts.lost() as f64)
}

/// The logarithm of how likely it is that something happens just these `count` times of `trials`,
/// if its probability is `count / trials`.
pub(super) fn binomial_likelihood(count: f64, trials: f64) -> f64 {
    let rest = trials - count;
    if count <= 0.0 || rest <= 0.0 {
        return 0.0;
    }
    count * (count / trials).ln() + rest * (rest / trials).ln()
}

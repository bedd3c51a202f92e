//! Taking turns.

use std::collections::BTreeMap;

/// What a member may owe at most, in bytes, whatever it has sent: a datagram of any size.
pub(super) const DEBT_MAX: i64 = 1 << 16;

/// Members who take turns, by deficit round robin.
///
/// All but the first have nothing left of their turn, and perhaps a debt; so has a member that left, and it is
/// remembered until it is forgotten.
#[derive(Clone, Debug)]
pub(super) struct Ring<K> {
    /// Those who wait for their turn, in the order in which they get it.
    order: BTreeMap<u64, K>,
    members: BTreeMap<K, Member>,
    last_ticket: u64,
}

#[derive(Clone, Debug, Default)]
struct Member {
    /// Its place in the order, if it waits.
    ticket: Option<u64>,
    /// What is left of its turn, or its debt.
    left: i64,
}

impl<K> Default for Ring<K> {
    fn default() -> Self {
        Self {
            order: BTreeMap::new(),
            members: BTreeMap::new(),
            last_ticket: 0,
        }
    }
}

impl<K: Copy + Ord> Ring<K> {
    /// Has its turn after all others from now on, unless it waits already.
    pub fn join(&mut self, key: K) {
        let member = self.members.entry(key).or_default();
        if member.ticket.is_none() {
            self.last_ticket += 1;
            member.ticket = Some(self.last_ticket);
            self.order.insert(self.last_ticket, key);
        }
    }

    /// Waits no longer. What was left of its turn is lost; a debt is not.
    pub fn leave(&mut self, key: K) {
        if let Some(member) = self.members.get_mut(&key)
            && let Some(ticket) = member.ticket.take()
        {
            member.left = member.left.min(0);
            self.order.remove(&ticket);
        }
    }

    /// Is not known any longer.
    pub fn forget(&mut self, key: K) {
        self.leave(key);
        self.members.remove(&key);
    }

    /// Nobody waits.
    pub fn is_idle(&self) -> bool {
        self.order.is_empty()
    }

    /// Nobody is known.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whose turn it is. A turn is `quantum` bytes long.
    ///
    /// Members whose debt is larger than that are passed over, and owe less then.
    pub fn next(&mut self, quantum: impl Fn(K) -> i64) -> Option<K> {
        loop {
            let key = *self.order.first_key_value()?.1;
            let member = self.members.get_mut(&key)?;
            if member.left <= 0 {
                member.left += quantum(key).max(1);
            }
            if member.left > 0 {
                return Some(key);
            }
            self.pass(key);
        }
    }

    /// The member has sent so many bytes. Its turn ends if that is all it may send.
    pub fn charge(&mut self, key: K, bytes: i64) {
        let Some(member) = self.members.get_mut(&key) else {
            return;
        };
        let had_turn = member.left > 0;
        member.left = member.left.saturating_sub(bytes).max(-DEBT_MAX);
        if had_turn && member.left <= 0 {
            self.pass(key);
        }
    }

    /// Lets all others go first.
    fn pass(&mut self, key: K) {
        if self.order.len() == 1 {
            return;
        }
        self.leave(key);
        self.join(key);
    }
}

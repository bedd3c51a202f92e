//! Deficit round robin among members.

use std::collections::BTreeMap;

/// Maximum debt of a member in bytes: a datagram of any size.
pub(super) const DEBT_MAX: i64 = 1 << 16;

/// Members that take turns by deficit round robin.
///
/// All members but the first have used up their turn, and perhaps have a debt. The debt of a member
/// that left is kept until the member is forgotten.
#[derive(Clone, Debug)]
pub(super) struct Ring<K> {
    /// Waiting members, in the order of their turns.
    order: BTreeMap<u64, K>,
    members: BTreeMap<K, Member>,
    last_ticket: u64,
}

#[derive(Clone, Debug, Default)]
struct Member {
    /// Place in the order, if waiting.
    ticket: Option<u64>,
    /// Bytes left of the turn, or the debt if negative.
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
    /// Adds the member at the end of the order, unless it waits already.
    pub fn join(&mut self, key: K) {
        let member = self.members.entry(key).or_default();
        if member.ticket.is_none() {
            self.last_ticket += 1;
            member.ticket = Some(self.last_ticket);
            self.order.insert(self.last_ticket, key);
        }
    }

    /// Removes the member from the order. It loses the rest of its turn, but keeps a debt.
    pub fn leave(&mut self, key: K) {
        if let Some(member) = self.members.get_mut(&key)
            && let Some(ticket) = member.ticket.take()
        {
            member.left = member.left.min(0);
            self.order.remove(&ticket);
        }
    }

    /// Removes all state of the member.
    pub fn forget(&mut self, key: K) {
        self.leave(key);
        self.members.remove(&key);
    }

    /// Returns true if no member waits.
    pub fn is_idle(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns true if there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the member whose turn it is. A turn is `quantum` bytes long.
    ///
    /// Skips members whose debt exceeds the quantum, and reduces the debt.
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

    /// Charges bytes to the member. Its turn ends when its quantum is used up.
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

    /// Moves the member to the end of the order.
    fn pass(&mut self, key: K) {
        if self.order.len() == 1 {
            return;
        }
        self.leave(key);
        self.join(key);
    }
}

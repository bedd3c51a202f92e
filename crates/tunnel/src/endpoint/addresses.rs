//! Addresses of a peer, in the order in which they are tried.

use std::net::SocketAddr;

/// Maximum number of addresses of a peer: a round of calls to more would take too long.
pub const ADDRESSES: usize = 8;

/// Addresses of one peer, in the order of RFC 8305, section 4, with the one that answered last
/// first.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    list: Vec<SocketAddr>,
    answered: Option<SocketAddr>,
}

impl Addresses {
    pub fn new(addresses: &[SocketAddr]) -> Self {
        Self {
            list: interleave(addresses),
            answered: None,
        }
    }

    pub fn list(&self) -> &[SocketAddr] {
        &self.list
    }

    /// Replaces the addresses. Returns true if one of them is new.
    pub fn replace(&mut self, addresses: &[SocketAddr]) -> bool {
        let before = std::mem::replace(&mut self.list, interleave(addresses));
        self.list.iter().any(|address| !before.contains(address))
    }

    /// Records that the peer answered at an address, so that it is tried first.
    pub fn on_answer(&mut self, address: SocketAddr) {
        // A roaming peer answers from other addresses, which does not affect the order.
        if self.list.contains(&address) {
            self.answered = Some(address);
        }
    }

    /// Returns the addresses in the order in which they are tried.
    pub fn in_order(&self) -> impl Iterator<Item = SocketAddr> {
        let first = self.answered.filter(|first| self.list.contains(first));
        let others = self.list.iter().copied();
        first
            .into_iter()
            .chain(others.filter(move |address| Some(*address) != first))
    }
}

/// Removes duplicates, and alternates address families, beginning with that of the first address.
/// If one family is unreachable, the second call uses the other one.
fn interleave(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    let is_alike = |address: &&SocketAddr| address.is_ipv4() == first.is_ipv4();
    let (mut alike, mut others) = (
        addresses.iter().filter(is_alike),
        addresses.iter().filter(|address| !is_alike(address)),
    );
    let mut list = Vec::new();
    for _ in addresses {
        for address in [alike.next(), others.next()].into_iter().flatten() {
            if !list.contains(address) {
                list.push(*address);
            }
        }
    }
    list.truncate(ADDRESSES);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(host: u8) -> SocketAddr {
        ([192, 0, 2, host], 5001).into()
    }

    fn v6(host: u16) -> SocketAddr {
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, host], 5001).into()
    }

    #[test]
    fn families_take_turns_beginning_with_that_of_the_first() {
        let asked = [v6(1), v6(2), v6(3), v4(1), v4(2), v6(1)];
        let order = [v6(1), v4(1), v6(2), v4(2), v6(3)];
        assert_eq!(Addresses::new(&asked).list(), order);
        let order = [v4(1), v6(1), v4(2)];
        assert_eq!(Addresses::new(&[v4(1), v4(2), v6(1)]).list(), order);
        assert_eq!(Addresses::new(&[]).list(), []);
    }

    #[test]
    fn there_are_no_more_than_eight_and_the_other_family_is_among_them() {
        let mut asked: Vec<_> = (1..=20).map(v6).collect();
        asked.push(v4(1));
        let addresses = Addresses::new(&asked);
        assert_eq!(addresses.list().len(), ADDRESSES);
        assert_eq!(addresses.list()[1], v4(1));
    }

    #[test]
    fn the_address_that_answered_is_first_as_long_as_there_is_such_a_one() {
        let mut addresses = Addresses::new(&[v6(1), v4(1), v4(2)]);
        let order = |addresses: &Addresses| addresses.in_order().collect::<Vec<_>>();
        addresses.on_answer(v4(2));
        assert_eq!(order(&addresses), [v4(2), v6(1), v4(1)]);
        addresses.on_answer(v4(9));
        assert_eq!(order(&addresses), [v4(2), v6(1), v4(1)]);
        assert!(!addresses.replace(&[v4(1), v4(2)]), "both are known");
        assert_eq!(order(&addresses), [v4(2), v4(1)]);
        assert!(addresses.replace(&[v4(1), v4(3)]));
        assert_eq!(order(&addresses), [v4(1), v4(3)]);
    }
}

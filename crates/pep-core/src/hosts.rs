//! Hosts behind us, and how many flows each of them has: none may have all.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// A host, as far as it can be told from others: an IPv4 address, or an IPv6 /64.
///
/// Within a /64 a host takes as many addresses as it likes (RFC 8981 has it change them daily), so that a limit by address would be none.
/// All hosts of a network with one /64 are one for us, as those behind one address of a NAT router are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(IpAddr);

impl Host {
    /// Whose address this is.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self(address),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }

    /// The address, or the first one of the /64.
    pub fn address(self) -> IpAddr {
        self.0
    }

    /// A number of its own: no network that is in use begins with 32 bits of zeros.
    pub fn number(self) -> u64 {
        match self.0 {
            IpAddr::V4(address) => address.to_bits().into(),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

/// What one more flow of a host means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// There may be more of it.
    Within,
    /// It has come to its cap by this one.
    Reached,
    /// It had as many as it may have before. The kernel had answered it when it was told to forward further ones.
    Beyond,
}

/// Flows of each host, against what one may have. Who has come to the cap is [at it](Self::at_cap) until it has a sixteenth fewer, since
/// each change costs a transaction of the packet filter.
#[derive(Debug)]
pub struct HostFlows {
    cap: u32,
    open: HashMap<Host, u32>,
    at_cap: BTreeSet<Host>,
}

impl HostFlows {
    /// No flow, and each host may have `cap`, at least 1.
    pub fn new(cap: u32) -> Self {
        Self {
            cap: cap.max(1),
            open: HashMap::new(),
            at_cap: BTreeSet::new(),
        }
    }

    /// From now on each may have `cap`, at least 1.
    pub fn set_cap(&mut self, cap: u32) {
        self.cap = cap.max(1);
        let (cap, again) = (self.cap, self.again());
        let at_cap = self
            .open
            .iter()
            .filter(|(host, open)| **open >= cap || **open > again && self.at_cap.contains(host));
        self.at_cap = at_cap.map(|(host, _)| *host).collect();
    }

    /// How many each may have.
    pub fn cap(&self) -> u32 {
        self.cap
    }

    /// How many a host has.
    pub fn open(&self, host: Host) -> u32 {
        self.open.get(&host).copied().unwrap_or(0)
    }

    /// Hosts whose further flows are not ours.
    pub fn at_cap(&self) -> &BTreeSet<Host> {
        &self.at_cap
    }

    /// A flow has begun, whatever the cap.
    pub fn begin(&mut self, host: Host) -> Begun {
        let open = self.open.entry(host).or_insert(0);
        *open += 1;
        if *open > self.cap {
            Begun::Beyond
        } else if *open == self.cap && self.at_cap.insert(host) {
            Begun::Reached
        } else {
            Begun::Within
        }
    }

    /// A flow has ended. Returns whether the host is no longer at the cap by that.
    ///
    /// # Panics
    /// When it had none.
    pub fn end(&mut self, host: Host) -> bool {
        let again = self.again();
        let open = self.open.get_mut(&host).expect("it has begun");
        *open -= 1;
        let open = *open;
        if open == 0 {
            self.open.remove(&host);
        }
        open <= again && self.at_cap.remove(&host)
    }

    /// With so many a host may have more again.
    fn again(&self) -> u32 {
        self.cap - self.cap.div_ceil(16)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn host(text: &str) -> Host {
        Host::of(text.parse().expect("an address"))
    }

    #[test]
    fn a_host_is_an_ipv4_address_or_a_64() {
        assert_ne!(host("10.0.0.1"), host("10.0.0.2"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:0:0:1"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("10.0.0.1").to_string(), "10.0.0.1");
        assert_eq!(host("2001:db8::1").to_string(), "2001:db8::/64");
    }

    #[test]
    fn a_host_is_at_its_cap_until_a_sixteenth_fewer() {
        let (mut flows, one) = (HostFlows::new(32), host("10.0.0.1"));
        for open in 1..32 {
            assert_eq!(flows.begin(one), Begun::Within, "{open}");
        }
        assert!(flows.at_cap().is_empty());
        assert_eq!(flows.begin(one), Begun::Reached);
        assert_eq!(flows.begin(one), Begun::Beyond);
        assert_eq!(flows.begin(host("10.0.0.2")), Begun::Within);
        assert!(!flows.end(one) && !flows.end(one));
        assert_eq!(flows.begin(one), Begun::Within, "the kernel knows already");
        assert!(!flows.end(one));
        assert!(flows.end(one), "30 are open");
        assert!(flows.at_cap().is_empty());
    }

    #[test]
    fn a_cap_of_one_is_one() {
        let (mut flows, one) = (HostFlows::new(0), host("10.0.0.1"));
        assert_eq!(flows.begin(one), Begun::Reached);
        assert!(flows.end(one));
    }

    #[test]
    fn another_cap_is_that_of_flows_that_are_open() {
        let (mut flows, one) = (HostFlows::new(u32::MAX), host("10.0.0.1"));
        for _ in 0..20 {
            flows.begin(one);
        }
        flows.set_cap(20);
        assert_eq!(flows.at_cap(), &BTreeSet::from([one]));
        flows.set_cap(21);
        assert_eq!(
            flows.at_cap(),
            &BTreeSet::from([one]),
            "19 would be few enough"
        );
        flows.set_cap(40);
        assert!(flows.at_cap().is_empty());
    }

    proptest! {
        /// Against a list of flows: counts are right, who has as many as it may is at the cap, who has a sixteenth fewer is not, and nothing is
        /// kept of hosts without flows.
        #[test]
        fn counts_are_those_of_a_list(cap in 1..40u32, steps in vec((any::<bool>(), 0..3u8), 1..400)) {
            let mut flows = HostFlows::new(cap);
            let mut list: Vec<Host> = Vec::new();
            for (begins, number) in steps {
                let one = Host::of([10, 0, 0, number].into());
                if begins {
                    list.push(one);
                    let begun = flows.begin(one);
                    let open = list.iter().filter(|it| **it == one).count() as u32;
                    prop_assert_eq!(begun == Begun::Beyond, open > cap);
                } else if let Some(at) = list.iter().position(|it| *it == one) {
                    list.swap_remove(at);
                    flows.end(one);
                }
                prop_assert_eq!(flows.open.len(), list.iter().collect::<BTreeSet<_>>().len());
                for number in 0..3 {
                    let one = Host::of([10, 0, 0, number].into());
                    let open = list.iter().filter(|it| **it == one).count() as u32;
                    prop_assert_eq!(flows.open(one), open);
                    let at_cap = flows.at_cap().contains(&one);
                    prop_assert!(at_cap || open < cap);
                    prop_assert!(!at_cap || open > cap - cap.div_ceil(16));
                }
            }
        }
    }
}

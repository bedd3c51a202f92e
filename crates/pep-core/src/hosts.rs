//! Flows per host, limited so that no host takes them all.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// A host: an IPv4 address, or an IPv6 /64.
///
/// Within a /64 a host takes as many addresses as it likes (RFC 8981 changes them daily), so that a
/// limit per address would limit nothing. All hosts of a network with one /64 count as one host,
/// like those behind one address of a NAT router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(IpAddr);

impl Host {
    /// Returns the host that has this address.
    pub fn from_address(address: IpAddr) -> Self {
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

    /// Unique number of the host: no network in use starts with 32 bits of zeros.
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

/// Result of counting one more flow of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// The host may have more flows.
    Within,
    /// The host has reached its cap with this flow.
    Reached,
    /// The host was at its cap already. The kernel had answered this flow before the rule against
    /// further ones was in place.
    Beyond,
}

/// Flows of each host, limited by a cap. A host that reaches it is [at the cap](Self::at_cap) until
/// it has a sixteenth fewer, since each change costs a transaction of the packet filter.
#[derive(Debug)]
pub struct HostFlows {
    cap: u32,
    open: HashMap<Host, u32>,
    at_cap: BTreeSet<Host>,
}

impl HostFlows {
    /// Returns a table without flows, with a cap of `cap`, 1 or more, for each host.
    pub fn new(cap: u32) -> Self {
        Self {
            cap: cap.max(1),
            open: HashMap::new(),
            at_cap: BTreeSet::new(),
        }
    }

    /// Sets the cap per host to `cap`, 1 or more.
    pub fn set_cap(&mut self, cap: u32) {
        self.cap = cap.max(1);
        let (cap, again) = (self.cap, self.again());
        let at_cap = self
            .open
            .iter()
            .filter(|(host, open)| **open >= cap || **open > again && self.at_cap.contains(host));
        self.at_cap = at_cap.map(|(host, _)| *host).collect();
    }

    /// Cap per host.
    pub fn cap(&self) -> u32 {
        self.cap
    }

    /// Number of open flows of a host.
    pub fn open(&self, host: Host) -> u32 {
        self.open.get(&host).copied().unwrap_or(0)
    }

    /// Hosts whose further flows the kernel forwards.
    pub fn at_cap(&self) -> &BTreeSet<Host> {
        &self.at_cap
    }

    /// Counts a new flow, even beyond the cap.
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

    /// Counts the end of a flow. Returns whether the host leaves the cap by that.
    ///
    /// # Panics
    /// When the host had no flow.
    pub fn end(&mut self, host: Host) -> bool {
        let again = self.again();
        let open = self.open.get_mut(&host).expect("the host has flows");
        *open -= 1;
        let open = *open;
        if open == 0 {
            self.open.remove(&host);
        }
        open <= again && self.at_cap.remove(&host)
    }

    /// Number of flows at which a host leaves the cap.
    fn again(&self) -> u32 {
        self.cap - self.cap.div_ceil(16)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn host(text: &str) -> Host {
        Host::from_address(text.parse().expect("an address"))
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
        assert_eq!(flows.begin(one), Begun::Within, "already at the cap");
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
        /// Compares with a list of flows: counts are right, a host with as many flows as it may
        /// have is at the cap, a host with a sixteenth fewer is not, and no state remains of hosts
        /// without flows.
        #[test]
        fn counts_are_those_of_a_list(cap in 1..40u32, steps in vec((any::<bool>(), 0..3u8), 1..400)) {
            let mut flows = HostFlows::new(cap);
            let mut list: Vec<Host> = Vec::new();
            for (begins, number) in steps {
                let one = Host::from_address([10, 0, 0, number].into());
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
                    let one = Host::from_address([10, 0, 0, number].into());
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

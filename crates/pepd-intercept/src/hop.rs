//! Next hops in messages of the kernel (rtnetlink).

use std::net::IpAddr;

use netlink_packet_route::{
    RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage},
};

use super::netlink::interface;

/// A neighbour, or the next hop toward a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Hop {
    pub(super) interface: u32,
    pub(super) address: IpAddr,
}

impl Hop {
    /// Returns the neighbour that a notice reports as unreachable. The kernel reports one that an
    /// operator deletes in the same way.
    pub(super) fn failed(notice: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewNeighbour(message) = notice else {
            return None;
        };
        (message.header.state == NeighbourState::Failed).then(|| Self::of_neighbour(message))?
    }

    /// Returns the neighbour of a message if the kernel looks for it, or has found nothing.
    pub(super) fn unresolved(message: &NeighbourMessage) -> Option<Self> {
        let unresolved = [NeighbourState::Failed, NeighbourState::Incomplete];
        (unresolved.contains(&message.header.state)).then(|| Self::of_neighbour(message))?
    }

    fn of_neighbour(message: &NeighbourMessage) -> Option<Self> {
        let mut addresses = message
            .attributes
            .iter()
            .filter_map(|attribute| match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                    Some(IpAddr::from(*address))
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                    Some(IpAddr::from(*address))
                }
                _ => None,
            });
        Some(Self {
            interface: message.header.ifindex,
            address: addresses.next()?,
        })
    }

    /// Returns the neighbour by which a route reaches its destination.
    pub(super) fn of_route(route: &RouteMessage, destination: IpAddr) -> Option<Self> {
        let attributes = route.attributes.iter();
        let mut gateways = attributes.filter_map(|attribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(IpAddr::from(*address)),
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => Some(IpAddr::from(*address)),
            _ => None,
        });
        Some(Self {
            interface: interface(route)?,
            address: gateways.next().unwrap_or(destination),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(state: NeighbourState) -> RouteNetlinkMessage {
        RouteNetlinkMessage::NewNeighbour(message(state))
    }

    fn message(state: NeighbourState) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 3;
        message.header.state = state;
        let address = NeighbourAddress::Inet([192, 0, 2, 1].into());
        message.attributes = vec![NeighbourAttribute::Destination(address)];
        message
    }

    #[test]
    fn only_neighbours_that_do_not_answer_have_failed() {
        let failed = Hop {
            interface: 3,
            address: [192, 0, 2, 1].into(),
        };
        assert_eq!(
            Hop::failed(&neighbour(NeighbourState::Failed)),
            Some(failed)
        );
        assert_eq!(Hop::failed(&neighbour(NeighbourState::Reachable)), None);
        let unresolved = |state| Hop::unresolved(&message(state));
        assert_eq!(unresolved(NeighbourState::Failed), Some(failed));
        assert_eq!(unresolved(NeighbourState::Incomplete), Some(failed));
        assert_eq!(unresolved(NeighbourState::Stale), None);
    }
}

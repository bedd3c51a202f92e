//! Next hops that do not answer.
//!
//! When ARP or neighbour discovery fails for a server leg, the kernel reports it to the source
//! address of our SYN, the client's, quoting our sequence number: the client ignores it and we
//! never see it. So we watch for failed neighbours ourselves.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _};
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{
    RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAddress, RouteAttribute, RouteMessage},
};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder, new_multicast_connection};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::held::HeldLegs;

/// A neighbour, or the next hop toward a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hop {
    interface: u32,
    address: IpAddr,
}

/// Reports destinations of held flows whose next hop does not answer, until the receiver is
/// gone. `mark` is that of server legs, since routing may depend on it.
///
/// Routing by source address is not taken into account: the kernel does not say how it would
/// route a packet of ours from another's address.
pub async fn watch(held: Arc<HeldLegs>, mark: u32, failed: mpsc::Sender<IpAddr>) {
    let (connection, handle, mut messages) =
        match new_multicast_connection(&[MulticastGroup::Neigh]) {
            Ok(opened) => opened,
            Err(err) => {
                warn!(%err, "cannot watch neighbours: clients of dead next hops will time out");
                return;
            }
        };
    let connection = tokio::spawn(connection);
    while let Some((message, _)) = messages.next().await {
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(message)) =
            message.payload
        else {
            continue;
        };
        let Some(hop) = failed_hop(&message) else {
            continue;
        };
        debug!(?hop, "neighbour does not answer");
        for destination in behind(&handle, hop, destinations(&held), mark).await {
            if failed.send(destination).await.is_err() {
                connection.abort();
                return;
            }
        }
    }
}

fn failed_hop(message: &NeighbourMessage) -> Option<Hop> {
    if message.header.state != NeighbourState::Failed {
        return None;
    }
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                Some((*address).into())
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                Some((*address).into())
            }
            _ => None,
        });
    Some(Hop {
        interface: message.header.ifindex,
        address: address?,
    })
}

fn destinations(held: &HeldLegs) -> BTreeSet<IpAddr> {
    let flows = held.connecting().into_iter();
    flows.map(|flow| flow.destination.ip()).collect()
}

/// Of these destinations, those reached by `hop`.
async fn behind(
    handle: &Handle,
    hop: Hop,
    destinations: BTreeSet<IpAddr>,
    mark: u32,
) -> Vec<IpAddr> {
    // On-link destinations need no look-up, so that a scan of a dead subnet costs no square.
    if destinations.contains(&hop.address) {
        return vec![hop.address];
    }
    let mut behind = Vec::new();
    for destination in destinations {
        if destination.is_ipv4() == hop.address.is_ipv4()
            && next_hop(handle, destination, mark).await == Some(hop)
        {
            behind.push(destination);
        }
    }
    behind
}

async fn next_hop(handle: &Handle, destination: IpAddr, mark: u32) -> Option<Hop> {
    let query = match destination {
        IpAddr::V4(address) => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .mark(mark)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<std::net::Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .mark(mark)
            .build(),
    };
    let mut routes = handle.route().get(query).execute();
    let route = routes.try_next().await.ok()??;
    hop_of(&route, destination)
}

fn hop_of(route: &RouteMessage, destination: IpAddr) -> Option<Hop> {
    let mut hop = (None, destination);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(interface) => hop.0 = Some(*interface),
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => hop.1 = (*address).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(address)) => hop.1 = (*address).into(),
            _ => {}
        }
    }
    Some(Hop {
        interface: hop.0?,
        address: hop.1,
    })
}

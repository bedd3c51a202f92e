//! State of the link's interface. With modems that tie their interface to the link, it reports an
//! outage long before silence does.

use std::{convert::Infallible, io};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use pep_core::config::IfName;
use pepd_sys::notices::{Group, Notices, Retry};

use super::LinkWatch;

/// Passes on the state of an interface, for as long as it is polled.
pub(super) async fn watch(link: &LinkWatch, interface: &IfName) {
    let mut retry = Retry::new("link outages are detected by silence only");
    loop {
        let Err(err) = follow(link, interface).await;
        retry.wait(&err).await;
    }
}

async fn follow(link: &LinkWatch, interface: &IfName) -> io::Result<Infallible> {
    let notices = Notices::open(Group::Link)?;
    // It may have changed since the last look, or while no watch was open.
    let now = is_up(interface);
    if let Some(up) = now {
        link.carrier(up);
    }
    let mut last = now.unwrap_or(true);
    loop {
        let states = notices
            .next(|notice| carries(notice, interface.as_str()))
            .await?;
        for up in states {
            if up != last {
                tracing::info!(
                    interface = interface.as_str(),
                    up,
                    "state of the link's interface changed"
                );
                link.carrier(up);
                last = up;
            }
        }
    }
}

/// Returns the state of the interface; `None` where the kernel does not report it. A missing
/// interface, such as an unplugged modem's, is down.
pub(super) fn is_up(interface: &IfName) -> Option<bool> {
    let mut all = getifaddrs().ok()?;
    let found = all.find(|entry| entry.interface_name == interface.as_str());
    let carries = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    Some(found.is_some_and(|found| found.flags.contains(carries)))
}

/// Returns the state of this interface according to a notice.
fn carries(notice: &RouteNetlinkMessage, interface: &str) -> Option<bool> {
    match notice {
        RouteNetlinkMessage::NewLink(link) if has_name(link, interface) => {
            let carries = LinkFlags::Up | LinkFlags::Running;
            Some(link.header.flags.contains(carries))
        }
        RouteNetlinkMessage::DelLink(link) if has_name(link, interface) => Some(false),
        _ => None,
    }
}

fn has_name(link: &LinkMessage, interface: &str) -> bool {
    link.attributes
        .iter()
        .any(|attribute| matches!(attribute, LinkAttribute::IfName(name) if name == interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, flags: LinkFlags) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.flags = flags;
        message.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        message
    }

    fn state_of(name: &str, flags: LinkFlags) -> Option<bool> {
        carries(&RouteNetlinkMessage::NewLink(link(name, flags)), "sat0")
    }

    #[test]
    fn an_interface_is_up_when_it_carries_packets() {
        let up = LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp;
        assert_eq!(state_of("sat0", up), Some(true));
        assert_eq!(
            state_of("sat0", LinkFlags::Up),
            Some(false),
            "interface without carrier"
        );
        assert_eq!(state_of("sat0", LinkFlags::empty()), Some(false));
        assert_eq!(state_of("sat1", up), None, "another interface");
    }

    #[test]
    fn how_an_interface_is_at_the_beginning_is_asked() {
        assert_eq!(is_up(&"lo".parse().unwrap()), Some(true));
        assert_eq!(is_up(&"no-such-one".parse().unwrap()), Some(false));
    }

    #[test]
    fn a_removed_interface_is_down() {
        let up = LinkFlags::Up | LinkFlags::Running;
        let gone = RouteNetlinkMessage::DelLink(link("sat0", up));
        assert_eq!(carries(&gone, "sat0"), Some(false));
        assert_eq!(carries(&gone, "sat1"), None);
    }
}

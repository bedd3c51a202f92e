//! The state of the link's interface, as a hint to the sessions: long before silence would tell, and for modems
//! that let their interface follow the link.

use std::{convert::Infallible, io};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};
use pep_core::config::IfName;
use tunnel::session::LinkHint;

use super::core::Shared;
use crate::notices::{Group, Notices, Retry};

/// Passes on what becomes of an interface, for as long as it is polled.
pub(super) async fn watch(core: Shared, interface: IfName) {
    let mut retry = Retry::new("outages are noticed by silence only");
    loop {
        let Err(err) = follow(&core, &interface).await;
        retry.wait(&err).await;
    }
}

async fn follow(core: &Shared, interface: &IfName) -> io::Result<Infallible> {
    let notices = Notices::open(Group::Link)?;
    let mut last = LinkHint::Up;
    loop {
        let hints = notices
            .next(|notice| hint(notice, interface.as_str()))
            .await?;
        for hint in hints {
            if hint != last {
                tracing::info!(interface = interface.as_str(), now = ?hint, "the link's interface has changed");
                core.borrow_mut().hint(hint);
                last = hint;
            }
        }
    }
}

/// What a notice says of this interface.
fn hint(notice: &RouteNetlinkMessage, interface: &str) -> Option<LinkHint> {
    match notice {
        RouteNetlinkMessage::NewLink(link) if is_called(link, interface) => {
            let carries = LinkFlags::Up | LinkFlags::Running;
            let up = link.header.flags.contains(carries);
            Some(if up { LinkHint::Up } else { LinkHint::Down })
        }
        RouteNetlinkMessage::DelLink(link) if is_called(link, interface) => Some(LinkHint::Down),
        _ => None,
    }
}

fn is_called(link: &LinkMessage, interface: &str) -> bool {
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

    fn hint_of(name: &str, flags: LinkFlags) -> Option<LinkHint> {
        hint(&RouteNetlinkMessage::NewLink(link(name, flags)), "sat0")
    }

    #[test]
    fn an_interface_is_up_when_it_carries_packets() {
        let up = LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp;
        assert_eq!(hint_of("sat0", up), Some(LinkHint::Up));
        assert_eq!(
            hint_of("sat0", LinkFlags::Up),
            Some(LinkHint::Down),
            "no carrier"
        );
        assert_eq!(hint_of("sat0", LinkFlags::empty()), Some(LinkHint::Down));
        assert_eq!(hint_of("sat1", up), None, "another interface");
    }

    #[test]
    fn an_interface_that_goes_away_is_down() {
        let up = LinkFlags::Up | LinkFlags::Running;
        let gone = RouteNetlinkMessage::DelLink(link("sat0", up));
        assert_eq!(hint(&gone, "sat0"), Some(LinkHint::Down));
        assert_eq!(hint(&gone, "sat1"), None);
    }
}

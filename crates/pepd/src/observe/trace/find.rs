//! Search for a flow by an operator's input.

use std::net::{IpAddr, SocketAddr};

use pep_core::arena::{Identity, SlotState};
use pepd_relay::arena::Arena;

use super::Observer;
use crate::observe::custody::id;

/// Maximum number of flows listed when several match.
const LISTED: usize = 20;

/// A flow and its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) slot: u32,
    pub(super) identity: Identity,
}

impl Target {
    /// Returns true if the identity is that of this flow, not of a successor.
    pub(super) fn is(&self, other: &Identity) -> bool {
        let key = |identity: &Identity| (identity.born, identity.client, identity.destination);
        key(&self.identity) == key(other)
    }
}

/// Reason why no flow was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// No open flow matches.
    #[error(
        "no open flow `{0}`: it has ended, or is not pepd's; `pepd flows` lists open flows with their ids"
    )]
    Unknown(String),
    /// Several flows have this client.
    #[error("{0} has several flows, select one by its id:\n{1}")]
    Several(String, String),
}

/// Finds the flow with this id, or the only one of the client with this address and port, or of the
/// host with this address.
pub(super) fn find(observer: &Observer, wanted: &str) -> Result<Target, FindError> {
    let mut found = matches(&observer.context.arena, wanted);
    match found.len() {
        0 => Err(FindError::Unknown(wanted.to_owned())),
        1 => Ok(found.remove(0)),
        _ => Err(FindError::Several(wanted.to_owned(), list(&found))),
    }
}

fn matches(arena: &Arena, wanted: &str) -> Vec<Target> {
    let (client, host) = (wanted.parse::<SocketAddr>(), wanted.parse::<IpAddr>());
    let slots = arena.occupied().into_iter();
    let flows = slots.filter_map(|slot| {
        let record = arena.record(slot)?;
        let identity = record.identity;
        (record.state != SlotState::Free).then_some(Target { slot, identity })
    });
    let is_wanted = |target: &Target| match (&client, &host) {
        (Ok(client), _) => target.identity.client == *client,
        (_, Ok(host)) => target.identity.client.ip() == *host,
        _ => id(target.slot, &target.identity) == wanted,
    };
    flows.filter(is_wanted).collect()
}

fn list(found: &[Target]) -> String {
    let lines = found.iter().take(LISTED).map(|target| {
        let id = id(target.slot, &target.identity);
        let Identity {
            client,
            destination,
            ..
        } = target.identity;
        format!("  {id}  {client} -> {destination}")
    });
    let mut lines: Vec<_> = lines.collect();
    if found.len() > LISTED {
        lines.push(format!("  and {} more", found.len() - LISTED));
    }
    lines.join("\n")
}

//! `[peer.NAME]` and `[identity]`: for tunnels. No mode uses them yet, so they are checked for
//! their form, lest a typing error waits for the day they matter, and then dropped.

use std::net::SocketAddr;

use toml::de::DeValue;

use super::{
    raw::Section,
    values::{NonEmpty, Reading},
};

/// Checks all `[peer.NAME]` sections and returns their names.
pub(super) fn read_peers(sections: Vec<(String, Section<'_>)>) -> Vec<String> {
    let read = |(name, mut section): (String, Section<'_>)| {
        section.read("endpoint", Endpoint);
        section.require(
            "public_key",
            NonEmpty("the peer's public key, as its `pepd keygen` printed it"),
        );
        section.read("psk_file", NonEmpty("the path of a file"));
        section.finish();
        name
    };
    sections.into_iter().map(read).collect()
}

/// Checks `[identity]`.
pub(super) fn read_identity(mut section: Section<'_>) {
    if section.is_present() {
        section.require(
            "key_file",
            NonEmpty("the path of the file that `pepd keygen` writes"),
        );
        section.read("listen", Listen);
        section.finish();
    }
}

/// A host, by name or address, and a port.
struct Endpoint;

impl Reading for Endpoint {
    type Value = ();

    fn expected(&self) -> String {
        "HOST:PORT such as \"192.0.2.1:5001\" or \"[2001:db8::1]:5001\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<(), String> {
        let text = self.text_of(value)?;
        let is_host = |host: &str| {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        };
        let is_endpoint = |(host, port): (&str, &str)| {
            is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        if text
            .parse::<SocketAddr>()
            .is_ok_and(|address| address.port() > 0)
            || text.rsplit_once(':').is_some_and(is_endpoint)
        {
            return Ok(());
        }
        Err(format!("`{text}` is not {}", self.expected()))
    }
}

/// An address of ours and a port.
struct Listen;

impl Reading for Listen {
    type Value = SocketAddr;

    fn expected(&self) -> String {
        "ADDRESS:PORT such as \"0.0.0.0:5001\" or \"[::]:5001\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<SocketAddr, String> {
        let text = self.text_of(value)?;
        let address = text
            .parse::<SocketAddr>()
            .ok()
            .filter(|address| address.port() > 0);
        address.ok_or_else(|| format!("`{text}` is not {}", self.expected()))
    }
}

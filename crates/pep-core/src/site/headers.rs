//! Values of packet headers.

use std::net::IpAddr;

use ipnet::IpNet;
use toml::de::DeValue;

use super::{PortRange, Protocol};
use crate::reading::values::{Reading, byte, integer_of, short};

/// A prefix, or a single address.
pub(crate) struct Prefix;

impl Prefix {
    /// Parses a prefix. Fails with a message for operators.
    pub(crate) fn parse(text: &str) -> Result<IpNet, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(IpNet::from(address));
        }
        let net: IpNet = text
            .parse()
            .map_err(|_| format!("`{text}` is not {}", Self.expected()))?;
        let trunc = net.trunc();
        if net != trunc {
            let host = IpNet::from(net.addr());
            return Err(format!(
                "{net} has bits set beyond its length; write \"{trunc}\" for the network or \"{host}\" for the host"
            ));
        }
        Ok(net)
    }
}

impl Reading for Prefix {
    type Value = IpNet;

    fn expected(&self) -> String {
        "a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<IpNet, String> {
        Self::parse(self.text_of(value)?)
    }
}

/// A port, or an inclusive range of ports.
pub(crate) struct Ports;

impl Ports {
    /// Parses a port or a range; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<PortRange> {
        let port = |text: &str| text.trim().parse().ok().filter(|port| *port > 0);
        match text.split_once('-') {
            Some((first, last)) => PortRange::new(port(first)?, port(last)?),
            None => port(text).map(PortRange::single),
        }
    }
}

impl Reading for Ports {
    type Value = PortRange;

    fn expected(&self) -> String {
        "a port from 1 to 65535, or a range such as \"8000-8100\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<PortRange, String> {
        if integer_of(value).is_some() {
            return short(1..=u16::MAX).read(value).map(PortRange::single);
        }
        let text = self.text_of(value)?;
        Self::parse(text).ok_or_else(|| format!("`{text}` is not {}", self.expected()))
    }
}

/// A DSCP, as a number or by its name (RFC 2474, 2597, 3246, 8622).
pub(crate) struct Dscp;

impl Dscp {
    fn named(text: &str) -> Option<u8> {
        let digits = |prefix| text.strip_prefix(prefix).map(str::as_bytes);
        match text {
            "ef" => return Some(46),
            "le" => return Some(1),
            _ => {}
        }
        if let Some([class @ b'0'..=b'7']) = digits("cs") {
            return Some((class - b'0') * 8);
        }
        match digits("af") {
            Some([class @ b'1'..=b'4', drop @ b'1'..=b'3']) => {
                Some((class - b'0') * 8 + (drop - b'0') * 2)
            }
            _ => None,
        }
    }
}

impl Reading for Dscp {
    type Value = u8;

    fn expected(&self) -> String {
        "a DSCP from 0 to 63, or its name such as \"ef\", \"af41\" or \"cs1\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<u8, String> {
        if integer_of(value).is_some() {
            let number = short(0..=63).read(value)?;
            return Ok(u8::try_from(number).expect("at most 63"));
        }
        let text = self.text_of(value)?;
        Self::named(&text.to_ascii_lowercase())
            .ok_or_else(|| format!("`{text}` is not {}", self.expected()))
    }
}

/// A protocol above IP, by name or number.
pub(crate) struct Protocols;

impl Reading for Protocols {
    type Value = Protocol;

    fn expected(&self) -> String {
        let names: Vec<_> = Protocol::names().collect();
        format!(
            "a protocol: {}, or its number from 0 to 255",
            names.join(", ")
        )
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Protocol, String> {
        if integer_of(value).is_some() {
            return byte(0..=255).read(value).map(Protocol);
        }
        let text = self.text_of(value)?;
        text.parse()
            .map_err(|error| format!("{error}; expected {}", self.expected()))
    }
}

//! `[admin]`: the administration interface of a running pepd.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use toml::de::DeValue;

use super::Config;
use crate::reading::{
    Findings, section,
    values::{Map, NonEmpty, Reading, WordOr, text},
    words,
};

section! {
    /// `[admin]`: the administration interface of a running pepd.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Admin(s) {
        /// Administration socket. Takes one descriptor; its mode limits access.
        socket: AdminSocket = socket(), AdminSocket::Auto;
        /// Access mode of the socket.
        mode: AdminMode = AdminMode::WORDS, AdminMode::Owner;
        /// Address of the read-only HTTP endpoint. Open to any user of this machine.
        http: Option<SocketAddr> = WordOr("off", None, Loopback), None;
    }
}

/// Location of the administration socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminSocket {
    /// In the directory that systemd created for pepd (`RuntimeDirectory=`), or else in
    /// `/run/pepd`. Named after `intercept.table`.
    Auto,
    /// At this path.
    Path(PathBuf),
    /// No socket.
    Off,
}

words! {
    /// Access mode of the administration socket.
    pub enum AdminMode {
        /// The user that pepd runs as (0600).
        Owner = "0600",
        /// The user and the group of pepd (0660).
        Group = "0660",
    }
}

impl AdminMode {
    /// File mode bits.
    pub fn bits(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
        }
    }
}

fn socket() -> impl Reading<Value = AdminSocket> {
    let expected = "\"auto\", \"off\", or the path of a socket";
    Map(SocketPath(NonEmpty(expected)), |text: String| {
        match text.as_str() {
            "auto" => AdminSocket::Auto,
            "off" => AdminSocket::Off,
            _ => AdminSocket::Path(text.into()),
        }
    })
}

/// A path that fits into the address of a Unix socket (unix(7)).
struct SocketPath(NonEmpty);

impl SocketPath {
    const MAX: usize = 107;
}

impl Reading for SocketPath {
    type Value = String;

    fn expected(&self) -> String {
        self.0.expected()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<String, String> {
        let path = self.0.read(value)?;
        if path.len() > Self::MAX {
            return Err(format!(
                "a path of {} bytes; accepted: up to {}, the kernel's maximum for a socket",
                path.len(),
                Self::MAX
            ));
        }
        Ok(path)
    }
}

/// Reports an HTTP endpoint on one of pepd's other ports.
pub(super) fn check_port(config: &Config, findings: &Findings) {
    let Some(http) = config.admin.http else {
        return;
    };
    let first = config.intercept.listen_port;
    // Otherwise `listen_port` has its own error.
    let sites = u16::try_from(config.sites.len()).unwrap_or(u16::MAX);
    let own = first.checked_add(sites).map(|_| config.listen_ports());
    let key = if own.is_some_and(|own| own.contains(&http.port())) {
        "intercept.listen_port"
    } else if config.peers_port() == Some(http.port()) {
        "identity.listen"
    } else {
        return;
    };
    let message = format!("{http} is a port of `{key}`; expected one that pepd does not use");
    findings.error("admin.http", message);
}

impl Admin {
    /// Resolves a relative path of the socket against `directory`.
    pub(super) fn resolve_paths(&mut self, directory: &Path) {
        if let AdminSocket::Path(path) = &mut self.socket {
            *path = directory.join(&*path);
        }
    }
}

/// A loopback address and a port.
struct Loopback;

impl Reading for Loopback {
    type Value = Option<SocketAddr>;

    fn expected(&self) -> String {
        "a loopback address and a port, such as \"127.0.0.1:9180\"".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<Self::Value, String> {
        let address = text::<SocketAddr>("an address and a port").read(value);
        let address = address.map_err(|err| format!("{err}; expected {}", self.expected()))?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{address} is not a loopback address, and this endpoint has no access control; \
                 expected {}, behind an authenticating proxy for access from elsewhere",
                self.expected()
            ));
        }
        if address.port() == 0 {
            return Err(format!(
                "port 0 is not a port; expected {}",
                self.expected()
            ));
        }
        Ok(Some(address))
    }
}

#[cfg(test)]
mod tests {
    use crate::config::parse;

    #[test]
    fn what_is_read_by_tcp_is_for_this_machine_only() {
        let with = |http: &str| {
            let text = format!("[intercept]\nlan = [\"eth0\"]\n[admin]\nhttp = \"{http}\"\n");
            parse(&text).map(|config| config.admin.http)
        };
        for http in ["127.0.0.1:9180", "127.1.2.3:80", "[::1]:9180"] {
            assert_eq!(with(http).unwrap(), Some(http.parse().unwrap()));
        }
        assert_eq!(with("off").unwrap(), None);
        for (http, reported) in [
            ("0.0.0.0:9180", "an authenticating proxy"),
            ("[::]:9180", "an authenticating proxy"),
            ("192.0.2.1:9180", "an authenticating proxy"),
            ("127.0.0.1:0", "port 0"),
            ("127.0.0.1", "such as \"127.0.0.1:9180\""),
            ("localhost:9180", "such as \"127.0.0.1:9180\""),
        ] {
            let errors = with(http).unwrap_err();
            let text = errors[0].to_string();
            assert!(
                errors.len() == 1 && text.contains(reported),
                "{http}: {text}"
            );
        }
    }
}

//! Settings found so far, and the configuration made from them.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{MigrateError, rules::Redirect};

/// Source address as in 1.9.1 and later, so that routes and filters still fit.
const SOURCE_SELF: &str = "\
source = \"self\"            # servers see this machine's address, as with PEPsal 1.9.1 and later
                           # (`pepsal -V`). With older versions they saw each client's: use
                           # \"client\", and route replies of servers through this machine
";
/// Source address as in 1.9.0 and earlier.
const SOURCE_CLIENT: &str = "\
source = \"client\"          # servers see each client's address, as with PEPsal up to 1.9.0
";

/// Maximum number of redirections; pepd allows 1024 sites, one of which takes the rest.
const REDIRECTS_MAX: usize = 1000;

/// Settings of the future configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    /// `intercept.lan`.
    pub lan: BTreeSet<String>,
    /// `link.interface`.
    pub link: Option<String>,
    /// `link.rate`.
    pub rate: Option<String>,
    /// `link.rate_down`.
    pub rate_down: Option<String>,
    /// `link.rtt`.
    pub rtt: Option<String>,
    /// `intercept.listen_port`.
    pub listen_port: Option<u16>,
    /// `limits.flows`.
    pub flows: Option<u32>,
    /// Congestion control of legs to servers.
    pub congestion: Option<String>,
    /// `mss` of legs to servers.
    pub mss: Option<u32>,
    /// True if this version of PEPsal connects from the clients' addresses (up to 1.9.0).
    pub binds_clients: bool,
    /// Redirected connections.
    pub redirects: Vec<Redirect>,
    /// True if some redirections were left out, with a remark.
    pub left_out: bool,
    /// Remarks on settings that have no counterpart, or another meaning.
    pub remarks: Vec<String>,
}

impl Draft {
    /// Adds a remark, once.
    pub fn remark(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }

    /// Adds a redirection with its interface.
    ///
    /// # Errors
    /// If no site can express it, with the reason.
    pub fn add(&mut self, redirect: Redirect) -> Result<(), String> {
        if self.redirects.contains(&redirect) {
            return Ok(());
        }
        if self.redirects.len() >= REDIRECTS_MAX {
            return Err(format!("there are more than {REDIRECTS_MAX} already"));
        }
        let alone = Self {
            lan: redirect.lan.iter().cloned().collect(),
            redirects: vec![redirect.clone()],
            ..Self::default()
        };
        if let Err(errors) = pep_core::config::parse(&alone.text()) {
            return Err(errors
                .first()
                .map(|error| error.message.clone())
                .unwrap_or_default());
        }
        self.lan.extend(redirect.lan.clone());
        self.redirects.push(redirect);
        Ok(())
    }

    /// Returns the configuration, with remarks as comments.
    ///
    /// # Errors
    /// If the interface of the hosts is unknown, or pepd rejects a value.
    pub fn to_toml(&self) -> Result<String, MigrateError> {
        if self.lan.is_empty() {
            let remarks = self
                .remarks
                .iter()
                .map(|remark| format!("\n- {}", one_line(remark)));
            return Err(MigrateError::NoLan(remarks.collect()));
        }
        let text = self.text();
        match pep_core::config::parse(&text) {
            Ok(_) => Ok(text),
            Err(errors) => {
                let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
                Err(MigrateError::Invalid(lines.join("\n"), text))
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("# Created by `pepd migrate` from settings of PEPsal.\n");
        text.push_str("# Differences: docs/from-pepsal.md; all keys: docs/configuration.md.\n");
        for remark in &self.remarks {
            let _ = writeln!(text, "#\n# - {}", one_line(remark));
        }
        self.write_interfaces(&mut text);
        self.write_sites(&mut text);
        text
    }

    fn write_interfaces(&self, text: &mut String) {
        let lan: Vec<String> = self.lan.iter().map(|name| quoted(name)).collect();
        let _ = writeln!(text, "\n[intercept]\nlan = [{}]", lan.join(", "));
        if let Some(port) = self.listen_port.filter(|port| *port != 5000) {
            let _ = writeln!(text, "listen_port = {port}");
        }
        match &self.link {
            Some(link) => {
                let _ = writeln!(text, "\n[link]\ninterface = {}", quoted(link));
                for (key, value) in [
                    ("rate", &self.rate),
                    ("rate_down", &self.rate_down),
                    ("rtt", &self.rtt),
                ] {
                    if let Some(value) = value {
                        let _ = writeln!(text, "{key} = {}", quoted(value));
                    }
                }
            }
            None => self.write_no_link(text),
        }
        if let Some(flows) = self.flows {
            let _ = writeln!(text, "\n[limits]\nflows = {flows}");
        }
    }

    fn write_no_link(&self, text: &mut String) {
        text.push_str(
                "\n# State the link: buffers, pacing and shares depend on it. PEPsal has no such setting.\n\
                 # [link]\n# interface = \"sat0\"\n# rate = \"10Mbit/s\"\n# rtt = \"600ms\"\n",
            );
        if self.lan.len() > 1 {
            text.push_str(
                "# If one of the interfaces above belongs to the link, run `pepd migrate` again with --link:\n\
                 # connections that arrive on it need a site with link_leg = \"client\".\n",
            );
        }
    }

    /// Writes a site for each redirected match; other connections pass, as before.
    fn write_sites(&self, text: &mut String) {
        let whole = |lan: &String| {
            let mut of_it = self
                .redirects
                .iter()
                .filter(|redirect| redirect.lan.as_ref() == Some(lan));
            of_it.any(Redirect::is_all)
        };
        let none = self.redirects.is_empty();
        let everything = !self.left_out && (none || self.lan.iter().all(whole));
        let mut matches: Vec<Redirect> = Vec::new();
        for redirect in self.redirects.iter().filter(|_| !everything) {
            let lan = redirect.lan.clone().filter(|_| self.lan.len() > 1);
            let redirect = Redirect {
                lan,
                ..redirect.clone()
            };
            if !matches.contains(&redirect) {
                matches.push(redirect);
            }
        }
        if everything {
            let by_link = self.link.clone().filter(|link| self.lan.contains(link));
            matches.extend(by_link.filter(|_| self.lan.len() > 1).map(|link| Redirect {
                lan: Some(link),
                ..Redirect::default()
            }));
            matches.push(Redirect::default());
        }
        let single = matches.len() == 1;
        for (at, redirect) in matches.iter().enumerate() {
            let name = if single {
                "pepsal".to_owned()
            } else {
                format!("pepsal-{}", at + 1)
            };
            let _ = writeln!(text, "\n[[site]]\nname = \"{name}\"");
            self.write_match(redirect, text);
            self.write_policy(self.is_by_link(redirect), text);
        }
        if !everything {
            text.push_str("\n[[site]]                    # the rules did not redirect other connections\nname = \"others\"\nmode = \"bypass\"\n");
        }
    }

    /// Returns true if redirected connections have crossed the link: their clients are behind it.
    fn is_by_link(&self, redirect: &Redirect) -> bool {
        let only = self.lan.iter().next().filter(|_| self.lan.len() == 1);
        self.link.is_some() && redirect.lan.as_ref().or(only) == self.link.as_ref()
    }

    fn write_match(&self, redirect: &Redirect, text: &mut String) {
        let mut keys = Vec::new();
        let lan = redirect.lan.iter();
        keys.extend(lan.map(|lan| format!("interface = [{}]", quoted(lan))));
        for (key, values) in [("src", &redirect.src), ("dst", &redirect.dst)] {
            let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            if !values.is_empty() {
                keys.push(format!("{key} = [{}]", values.join(", ")));
            }
        }
        if !redirect.dport.is_empty() {
            let number = |port: &String| {
                port.parse::<u16>()
                    .map_or_else(|_| quoted(port), |port| port.to_string())
            };
            let ports: Vec<String> = redirect.dport.iter().map(number).collect();
            keys.push(format!("dport = [{}]", ports.join(", ")));
        }
        if !keys.is_empty() {
            let _ = writeln!(text, "match = {{ {} }}", keys.join(", "));
        }
    }

    fn write_policy(&self, by_link: bool, text: &mut String) {
        if by_link {
            text.push_str("link_leg = \"client\"        # they arrive over the link\n");
        }
        match self.congestion.as_deref() {
            Some("cubic") => text.push_str("congestion = [\"cubic\"]\n"),
            Some(name) => {
                let _ = writeln!(text, "congestion = [{}, \"cubic\"]       # the first available one; see `pepd cc list`", quoted(name));
            }
            None => text.push_str(
                "# congestion = [\"hybla_sat\", \"bbr\", \"cubic\"]    # PEPsal used the system default; see docs/congestion.md\n",
            ),
        }
        if let Some(mss) = self.mss {
            let _ = writeln!(text, "mss = {mss}");
        }
        text.push_str(if self.binds_clients {
            SOURCE_CLIENT
        } else {
            SOURCE_SELF
        });
    }
}

/// Replaces control characters, which text from files may contain.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

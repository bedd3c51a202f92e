//! What was found, and the configuration that comes of it.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{MigrateError, rules::Redirect};

/// The address that servers see as with 1.9.1 and later, so that routes and filters still fit.
const SOURCE_SELF: &str = "\
source = \"self\"            # servers see this machine's address, as with PEPsal from 1.9.1 on
                           # (`pepsal -V`). Before, they saw each client's: then \"client\", and
                           # their answers have to come back through this machine
";
/// The address that servers see as with PEPsal up to 1.9.0.
const SOURCE_CLIENT: &str = "\
source = \"client\"          # servers see each client's address, as with PEPsal up to 1.9.0
";

/// There may be 1024 sites, of which one takes the rest.
const REDIRECTS_MAX: usize = 1000;

/// What is known of the configuration to be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    /// `intercept.lan`.
    pub lan: BTreeSet<String>,
    /// `link.interface`.
    pub link: Option<String>,
    /// `link.rate`.
    pub rate: Option<String>,
    /// `link.rtt`.
    pub rtt: Option<String>,
    /// `intercept.listen_port`.
    pub listen_port: Option<u16>,
    /// `limits.flows`.
    pub flows: Option<u32>,
    /// The congestion control of legs to servers.
    pub congestion: Option<String>,
    /// `mss` of these.
    pub mss: Option<u32>,
    /// PEPsal is of a version that connects from the clients' own addresses (up to 1.9.0).
    pub binds_clients: bool,
    /// What was redirected.
    pub redirects: Vec<Redirect>,
    /// Something more was, of which there is a remark.
    pub left_out: bool,
    /// What has no counterpart, or another meaning.
    pub remarks: Vec<String>,
}

impl Draft {
    /// Says something to whoever reads the result; once.
    pub fn remark(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }

    /// Takes something over that was redirected, with its interface.
    ///
    /// # Errors
    /// When no site can be made of it, with the reason.
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

    /// The configuration, with remarks as comments.
    ///
    /// # Errors
    /// When it is not known where hosts are, or a value is none that we accept.
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
        let mut text = String::from("# Made by `pepd migrate` from the settings of PEPsal.\n");
        text.push_str(
            "# docs/from-pepsal.md says what is different; every key: docs/configuration.md.\n",
        );
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
                for (key, value) in [("rate", &self.rate), ("rtt", &self.rtt)] {
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
                "\n# State the link: its buffers, pacing and shares follow from it, and PEPsal had nothing like it.\n\
                 # [link]\n# interface = \"sat0\"\n# rate = \"10Mbit/s\"\n# rtt = \"600ms\"\n",
            );
        if self.lan.len() > 1 {
            text.push_str(
                "# If one of the interfaces above leads over the link, run `pepd migrate` again with --link:\n\
                 # connections that come in by it need a site with link_leg = \"client\".\n",
            );
        }
    }

    /// One for each match that was redirected; what none of them matches passes, as it did.
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
            text.push_str("\n[[site]]                    # the rules left everything else alone\nname = \"others\"\nmode = \"bypass\"\n");
        }
    }

    /// Tells whether redirected connections have crossed the link: their clients are beyond it.
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
            text.push_str("link_leg = \"client\"        # they come in over the link\n");
        }
        match self.congestion.as_deref() {
            Some("cubic") => text.push_str("congestion = [\"cubic\"]\n"),
            Some(name) => {
                let _ = writeln!(text, "congestion = [{}, \"cubic\"]       # the first that can be had; `pepd cc list`", quoted(name));
            }
            None => text.push_str(
                "# congestion = [\"hybla_sat\", \"bbr\", \"cubic\"]    # PEPsal left it to the system; docs/congestion.md says which to take\n",
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

/// Of what was read from files anything may be part.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

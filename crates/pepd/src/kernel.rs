//! Comparison of a configuration with the machine.

use std::{io, net::IpAddr, path::Path};

use ipnet::IpNet;
use pepd_relay::{outage, survive::keeper};
use pepd_sys::{
    admin_socket,
    congestion::{Catalogue, Means, WhyNot},
    keys::{self, KeyFileError},
    load::{LoadError, Loaded, Source},
    socket::has_rto_max,
};
use pepd_tunnel::custody;

use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::if_nametoindex,
    sys::socket::SockaddrStorage,
};
use pep_core::config::{Config, ConfigError, ConfigWarning, CongestionName, IfName};

/// Checks a configuration, by itself and against this machine, and fits it to the memory that this
/// process may have.
///
/// # Errors
/// All problems found.
pub fn load(source: Source) -> Result<Loaded, LoadError> {
    let given = source.path.clone();
    let mut loaded = source.load_fitted()?;
    let findings = check(&loaded.config);
    if !findings.errors.is_empty() {
        return Err(LoadError::Invalid(given, findings.errors));
    }
    loaded.warnings.extend(findings.warnings);
    loaded.notes = findings.notes;
    Ok(loaded)
}

/// Logs once, at the start, kernel features that sites ask for but flows do not require.
pub fn log_missing(config: &Config) {
    // TCP_RTO_MIN_US came with TCP_RTO_MAX_MS.
    if has_rto_max() {
        return;
    }
    let flows = || {
        config
            .sites
            .iter()
            .map(|(_, site)| site)
            .filter(|site| site.mode.takes_flows())
    };
    if flows().any(|site| site.timeouts.rto_min.is_some()) {
        tracing::info!(
            "this kernel lacks TCP_RTO_MIN_US (Linux 6.15): `timeouts.rto_min` has an effect only with \
             the congestion controls hybla_sat, hybla and steady"
        );
    }
    if flows().any(|site| site.timeouts.rto_max.is_some()) {
        tracing::info!(
            "retransmission timeouts may grow to 120 s, since this kernel lacks TCP_RTO_MAX_MS (Linux 6.15): \
             `timeouts.rto_max` has no effect"
        );
    }
}

/// Problems and doubts.
#[derive(Debug, Default)]
pub struct Findings {
    /// Problems that prevent pepd from starting here.
    pub errors: Vec<ConfigError>,
    /// Conditions that may change later, or that cost performance.
    pub warnings: Vec<ConfigWarning>,
    /// Remarks that `pepd run` logs itself in due course.
    pub notes: Vec<ConfigWarning>,
}

/// Compares a configuration with the machine.
pub fn check(config: &Config) -> Findings {
    let mut findings = Findings::default();
    match Catalogue::of_machine() {
        Ok(catalogue) => findings.check_congestion(config, &catalogue),
        Err(err) => findings.warn(
            config,
            "site",
            format!("congestion controls not checked: {err}"),
        ),
    }
    findings.check_keys(config);
    findings.check_contacts(config);
    findings.check_interfaces(config);
    findings.check_survival(config);
    findings.check_gateway(config);
    findings.check_directory(config);
    findings.check_admin(config);
    findings
}

impl Findings {
    fn warn(&mut self, config: &Config, key: &str, message: String) {
        let (line, key) = (config.line_of(key), key.to_owned());
        self.warnings.push(ConfigWarning { line, key, message });
    }

    fn note(&mut self, config: &Config, key: &str, message: String) {
        let (line, key) = (config.line_of(key), key.to_owned());
        self.notes.push(ConfigWarning { line, key, message });
    }

    fn check_survival(&mut self, config: &Config) {
        if !config.custody.survive {
            return;
        }
        if let Err(err) = keeper::are_useful() {
            self.note(config, "custody.survive", err.to_string());
        }
    }

    /// Checks that the gateway is a machine beyond the link, not this one or a host.
    fn check_gateway(&mut self, config: &Config) {
        let Some(link) = &config.link else { return };
        let Some((gateway, interfaces)) = link.gateway.zip(getifaddrs().ok()) else {
            return;
        };
        let interfaces: Vec<_> = interfaces.collect();
        let around =
            |interface: &InterfaceAddress| network(interface).filter(|net| net.contains(&gateway));
        let mut of_link = interfaces.iter();
        let is_by_link = of_link.any(|interface| {
            interface.interface_name == link.interface.as_str() && around(interface).is_some()
        });
        for interface in &interfaces {
            let is = |address: Option<SockaddrStorage>| address.and_then(ip_of) == Some(gateway);
            let name = &interface.interface_name;
            let mut lan = config.intercept.lan.iter();
            let is_hosts = !is_by_link && lan.any(|lan| lan.as_str() == name);
            let what = if is(interface.address) {
                Some("this machine's own address")
            } else if is(interface.broadcast) {
                Some("the broadcast address")
            } else {
                around(interface).and_then(|net| not_beyond(gateway, net, is_hosts))
            };
            if let Some(what) = what {
                let message = format!(
                    "{gateway} is {what} on `{name}`, which does not prove that the link is up; expected the address of a machine beyond it"
                );
                return self.warn(config, "link.gateway", message);
            }
        }
    }

    /// Checks the directory as the start would; creates and removes nothing.
    fn check_directory(&mut self, config: &Config) {
        let directory = config.custody.directory.as_ref();
        let Some(directory) = directory.filter(|_| !config.peers.is_empty()) else {
            return;
        };
        let key = "custody.directory";
        match custody::inspect(directory, config.custody.disk_bytes()) {
            Ok(look) => {
                let warnings = look.warnings.into_iter();
                warnings.for_each(|message| self.warn(config, key, message));
                let notes = look.notes.into_iter();
                notes.for_each(|message| self.note(config, key, message));
            }
            Err(err) => self.errors.push(ConfigError {
                line: config.line_of(key),
                key: key.to_owned(),
                message: err.to_string(),
            }),
        }
    }

    /// Checks the admin socket, without which pepd runs nevertheless.
    fn check_admin(&mut self, config: &Config) {
        let path = admin_socket::path(config);
        if let Some(Err(err)) = path.map(|path| admin_socket::check(&path)) {
            let message = format!(
                "{err}; until then commands cannot reach this pepd (`pepd status`, `reload`, `link`)"
            );
            self.warn(config, "admin.socket", message);
        }
    }

    fn check_congestion(&mut self, config: &Config, catalogue: &Catalogue) {
        let sites = config.sites.iter();
        for (id, site) in sites.filter(|(_, site)| site.mode.takes_flows()) {
            for (name, wanted) in [
                ("congestion", &site.congestion),
                ("congestion_lan", &site.congestion_lan),
            ] {
                let key = format!("site[{}].{name}", id.index() + 1);
                self.check_list(config, catalogue, &key, wanted);
            }
        }
    }

    fn check_list(
        &mut self,
        config: &Config,
        catalogue: &Catalogue,
        key: &str,
        wanted: &[CongestionName],
    ) {
        if wanted.is_empty() {
            return;
        }
        let choice = catalogue.choose(wanted);
        match choice.chosen {
            None => self.errors.push(ConfigError {
                line: config.line_of(key),
                key: key.to_owned(),
                message: no_control(catalogue, &choice.passed_over),
            }),
            Some((name, means)) => {
                for why in choice.passed_over {
                    self.note(config, key, why.instead(name));
                }
                if means == Means::OtherProcess {
                    let message =
                        format!("`{name}` is eBPF of another process, and vanishes with it");
                    self.note(config, key, message);
                }
            }
        }
    }

    /// Checks the contact plan. It is read again when pepd runs, perhaps as another user.
    fn check_contacts(&mut self, config: &Config) {
        let contacts = config.link.as_ref().and_then(|link| link.contacts.as_ref());
        if let Some(Err(err)) = contacts.map(|path| outage::read_contacts(path)) {
            let key = "link.contacts".to_owned();
            self.errors.push(ConfigError {
                line: config.line_of(&key),
                key,
                message: err.to_string(),
            });
        }
    }

    fn check_keys(&mut self, config: &Config) {
        let identity = config.identity.iter();
        let own = identity.map(|identity| ("identity.key_file".to_owned(), &identity.key_file));
        let shared = config.peers.iter().filter_map(|peer| {
            let key = format!("peer.{}.psk_file", peer.name);
            Some((key, peer.psk_file.as_ref()?))
        });
        for (key, path) in own.chain(shared) {
            self.check_key(config, &key, path);
        }
        self.check_own_key(config);
    }

    fn check_key(&mut self, config: &Config, key: &str, path: &Path) {
        match keys::read(path) {
            Err(err) => self.errors.push(ConfigError {
                line: config.line_of(key),
                key: key.to_owned(),
                message: format!("{err}; {}", remedy(&err, key.ends_with("psk_file"))),
            }),
            Ok(_) if keys::is_open_to_others(path) => {
                let path = path.display();
                let message = format!("{path} is readable by other users: chmod 600");
                self.warn(config, key, message);
            }
            Ok(_) => {}
        }
    }

    /// Checks that no peer has pepd's own public key, a frequent mistake in the exchange of keys.
    fn check_own_key(&mut self, config: &Config) {
        let own = config.identity.as_ref();
        let Some(Ok(private)) = own.map(|identity| keys::read(&identity.key_file)) else {
            return;
        };
        let public = keys::public_key(&private);
        for peer in config.peers.iter().filter(|peer| peer.public_key == public) {
            let key = format!("peer.{}.public_key", peer.name);
            self.errors.push(ConfigError {
                line: config.line_of(&key),
                key,
                message:
                    "is the local public key; expected the peer's, as printed by its `pepd keygen`"
                        .to_owned(),
            });
        }
    }

    fn check_interfaces(&mut self, config: &Config) {
        let lan = config
            .intercept
            .lan
            .iter()
            .map(|name| ("intercept.lan", name));
        let link = config
            .link
            .iter()
            .map(|link| ("link.interface", &link.interface));
        let is_missing = |(_, name): &(&str, &IfName)| if_nametoindex(name.as_str()).is_err();
        for (key, name) in lan.chain(link).filter(is_missing) {
            let message = format!("interface `{name}` does not exist at present");
            self.warn(config, key, message);
        }
    }
}

/// Returns the network of an interface's address. Link-local networks are on every interface.
fn network(interface: &InterfaceAddress) -> Option<IpNet> {
    let address = interface.address.and_then(ip_of)?;
    let mask = interface.netmask.and_then(ip_of)?;
    let is_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let net = IpNet::with_netmask(address, mask).ok()?.trunc();
    (!is_local && net.prefix_len() > 0).then_some(net)
}

/// Describes an address in the network of an interface that cannot be a machine beyond the link.
/// Networks of two addresses or fewer have neither a broadcast nor a network address (RFC 3021, RFC
/// 6164).
fn not_beyond(address: IpAddr, net: IpNet, is_hosts: bool) -> Option<&'static str> {
    let is_wide = net.max_prefix_len() - net.prefix_len() > 1;
    if is_wide && address.is_ipv4() && net.broadcast() == address {
        Some("the broadcast address of the network")
    } else if is_wide && net.network() == address {
        Some("the address of the network itself")
    } else {
        is_hosts.then_some("on the hosts' side, in the network")
    }
}

fn ip_of(address: SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
}

/// Returns the remedy for a key file that cannot be read.
fn remedy(err: &KeyFileError, is_shared: bool) -> &'static str {
    match (err, is_shared) {
        (KeyFileError::Unreadable { err, .. }, _) if err.kind() != io::ErrorKind::NotFound => {
            "expected a file that pepd's user owns (chown) and may read \
             (chmod 600); with the systemd unit also one in /etc/pepd, which systemd passes to pepd at its start \
             (systemctl restart pepd, which keeps all flows)"
        }
        (_, true) => "create it with `pepd keygen --psk FILE`, and copy it to the other end",
        (_, false) => "create it with `pepd keygen --out FILE`",
    }
}

fn no_control(catalogue: &Catalogue, passed_over: &[WhyNot]) -> String {
    let why = catalogue.explain(passed_over);
    format!("no congestion control is available: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(congestion: &str) -> Config {
        let text = format!(
            "[intercept]\nlan = [\"lo\"]\n[[site]]\nname = \"a\"\ncongestion = {congestion}\n"
        );
        pep_core::config::parse(&text).expect("valid")
    }

    #[test]
    fn a_missing_congestion_control_is_an_error_that_names_the_available_ones() {
        let errors = check(&config(r#"["nonesuch", "neither"]"#)).errors;
        let [error] = errors.as_slice() else {
            panic!("one error, not {errors:?}")
        };
        assert_eq!((error.line, error.key.as_str()), (5, "site[1].congestion"));
        let expected = "no congestion control is available: `nonesuch` is not known; `neither` is not known; \
                        the kernel has ";
        assert!(error.message.starts_with(expected), "{error}");
        assert!(error.message.contains("reno"), "{error}");
        assert!(error.message.contains("hybla_sat"), "{error}");
    }

    #[test]
    fn a_fallback_that_exists_is_enough_and_what_is_passed_over_is_noted() {
        let findings = check(&config(r#"["nonesuch", "reno"]"#));
        assert!(findings.errors.is_empty());
        let notes: Vec<_> = findings.notes.iter().map(ToString::to_string).collect();
        assert_eq!(
            notes,
            [
                "5: site[1].congestion: congestion control nonesuch is not available, using reno instead: \
              neither the kernel nor pepd has it"
            ]
        );
    }

    #[test]
    fn a_missing_interface_is_a_warning() {
        let text = "[intercept]\nlan = [\"lo\", \"nonesuch0\"]\n";
        let warnings = check(&pep_core::config::parse(text).expect("valid")).warnings;
        let about: Vec<_> = warnings
            .iter()
            .filter(|warning| warning.key == "intercept.lan")
            .collect();
        let [warning] = about.as_slice() else {
            panic!("one warning, not {warnings:?}")
        };
        assert!(
            warning.line == 2 && warning.message.contains("nonesuch0"),
            "{warning}"
        );
    }

    #[test]
    fn a_gateway_that_is_this_machine_is_a_warning() {
        let own = getifaddrs().unwrap().find_map(|entry| {
            let address = entry.address.and_then(ip_of)?;
            (!address.is_loopback()).then_some(address)
        });
        let warned = |gateway: IpAddr| {
            let link = format!("[link]\ninterface = \"lo\"\ngateway = \"{gateway}\"\n");
            let text = format!("[intercept]\nlan = [\"lo\"]\n{link}");
            let warnings = check(&pep_core::config::parse(&text).expect("valid")).warnings;
            warnings.iter().any(|warning| warning.key == "link.gateway")
        };
        if let Some(own) = own {
            assert!(warned(own), "{own}");
        }
        assert!(!warned([192, 0, 2, 1].into()));
    }

    #[test]
    fn an_address_of_a_network_or_of_the_lan_is_not_beyond_the_link() {
        for (address, net, is_hosts, expected) in [
            (
                "192.0.2.255",
                "192.0.2.0/24",
                false,
                Some("the broadcast address of the network"),
            ),
            (
                "192.0.2.0",
                "192.0.2.0/24",
                false,
                Some("the address of the network itself"),
            ),
            (
                "2001:db8::",
                "2001:db8::/64",
                false,
                Some("the address of the network itself"),
            ),
            (
                "192.0.2.9",
                "192.0.2.0/24",
                true,
                Some("on the hosts' side, in the network"),
            ),
            ("192.0.2.9", "192.0.2.0/24", false, None),
            ("192.0.2.1", "192.0.2.0/31", false, None),
            (
                "2001:db8::ffff:ffff:ffff:ffff",
                "2001:db8::/64",
                false,
                None,
            ),
        ] {
            let (address, net) = (address.parse().unwrap(), net.parse().unwrap());
            assert_eq!(not_beyond(address, net, is_hosts), expected, "{address}");
        }
    }
}

//! What a configuration asks of the machine, and whether the machine has it.

use std::{fs, io, os::fd::AsFd};

use nix::{
    net::if_::if_nametoindex,
    sys::resource::{Resource, getrlimit},
};
use pep_core::{
    config::{Config, ConfigError, ConfigWarning, CongestionName, IfName},
    site::Mode,
};
use socket2::{Domain, Socket, Type};

use crate::sys;

/// Whether the kernel has TCP_RTO_MAX_MS (Linux 6.15); `timeouts.rto_max` has no effect else.
pub fn has_rto_max() -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    let set = |socket: Socket| {
        let (level, name) = (libc::IPPROTO_TCP, sys::socket::TCP_RTO_MAX_MS);
        sys::socket::set_int(socket.as_fd(), level, name, 2000)
    };
    socket.and_then(set).is_ok()
}

/// What was found wrong or doubtful.
#[derive(Debug, Default)]
pub struct Findings {
    /// What makes the configuration impossible here.
    pub errors: Vec<ConfigError>,
    /// What may become true later, or costs something.
    pub warnings: Vec<ConfigWarning>,
}

/// The congestion controls of the running kernel.
#[derive(Debug)]
pub struct Congestion {
    available: Vec<String>,
    default: String,
}

impl Congestion {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn of_kernel() -> io::Result<Self> {
        let read = |name| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        Ok(Self {
            available: read("tcp_available_congestion_control")?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            default: read("tcp_congestion_control")?.trim().to_owned(),
        })
    }

    /// The one a leg gets that asks for these, or `None` where the kernel has none of them.
    pub fn choose<'a>(&'a self, wanted: &'a [CongestionName]) -> Option<&'a str> {
        if wanted.is_empty() {
            return Some(&self.default);
        }
        wanted
            .iter()
            .map(CongestionName::as_str)
            .find(|name| self.has(name))
    }

    /// Whether the kernel has it, or can load it.
    pub fn has(&self, name: &str) -> bool {
        self.available.iter().any(|known| known == name) || loads(name) || is_module(name)
    }

    /// All that are loaded, by name.
    pub fn list(&self) -> String {
        self.available.join(", ")
    }
}

/// Asking for a congestion control loads its module, if we may.
fn loads(name: &str) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    socket.is_ok_and(|socket| socket.set_tcp_congestion(name.as_bytes()).is_ok())
}

/// Whether the module lies ready, for a check without the right to load it.
fn is_module(name: &str) -> bool {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else {
        return false;
    };
    let modules = fs::read_to_string(format!("/lib/modules/{}/modules.dep", release.trim()));
    let file = format!("/tcp_{}.ko", name.replace('-', "_"));
    modules.is_ok_and(|modules| {
        modules
            .lines()
            .filter_map(|line| line.split(':').next())
            .any(|path| path.contains(&file))
    })
}

/// Compares a configuration with the machine.
pub fn check(config: &Config) -> Findings {
    let mut findings = Findings::default();
    match Congestion::of_kernel() {
        Ok(kernel) => findings.check_congestion(config, &kernel),
        Err(err) => findings.warn(
            config,
            "site",
            format!("congestion controls not checked: {err}"),
        ),
    }
    findings.check_interfaces(config);
    findings.check_descriptors(config);
    findings
}

impl Findings {
    fn warn(&mut self, config: &Config, key: &str, message: String) {
        let (line, key) = (config.line_of(key), key.to_owned());
        self.warnings.push(ConfigWarning { line, key, message });
    }

    fn check_congestion(&mut self, config: &Config, kernel: &Congestion) {
        for (id, site) in config
            .sites
            .iter()
            .filter(|(_, site)| site.mode == Mode::Split)
        {
            for (name, wanted) in [
                ("congestion", &site.congestion),
                ("congestion_lan", &site.congestion_lan),
            ] {
                let key = format!("site[{}].{name}", id.index() + 1);
                self.check_list(config, kernel, key, wanted);
            }
        }
    }

    fn check_list(
        &mut self,
        config: &Config,
        kernel: &Congestion,
        key: String,
        wanted: &[CongestionName],
    ) {
        if kernel.choose(wanted).is_some() {
            return;
        }
        let names: Vec<_> = wanted.iter().map(|name| format!("\"{name}\"")).collect();
        let message = format!(
            "this kernel has no {}; it has {} (add one of these to the end of the list)",
            names.join(" and no "),
            kernel.list()
        );
        self.errors.push(ConfigError {
            line: config.line_of(&key),
            key,
            message,
        });
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
            let message = format!("there is no interface `{name}` at the moment");
            self.warn(config, key, message);
        }
    }

    /// The cap on flows is kept whatever happens; this tells in advance that it will be lower.
    fn check_descriptors(&mut self, config: &Config) {
        let needed = config.limits.descriptors_needed();
        let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
            return;
        };
        if hard < needed {
            let message = format!(
                "{} flows and what is held need {needed} descriptors; this process gets {hard} \
                 (ulimit -Hn), so fewer flows are accelerated",
                config.limits.flows
            );
            self.warn(config, "limits.flows", message);
        }
    }
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
    fn a_missing_congestion_control_is_an_error_that_names_what_there_is() {
        let errors = check(&config(r#"["nonesuch", "neither"]"#)).errors;
        let [error] = errors.as_slice() else {
            panic!("one error, not {errors:?}")
        };
        assert_eq!((error.line, error.key.as_str()), (5, "site[1].congestion"));
        assert!(
            error.message.contains("no \"nonesuch\" and no \"neither\""),
            "{error}"
        );
        assert!(error.message.contains("reno"), "{error}");
    }

    #[test]
    fn a_fallback_that_exists_is_enough() {
        assert!(check(&config(r#"["nonesuch", "reno"]"#)).errors.is_empty());
        let kernel = Congestion::of_kernel().expect("/proc");
        let wanted = ["nonesuch", "reno"].map(|name| name.parse().expect("a name"));
        assert_eq!(kernel.choose(&wanted), Some("reno"));
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
}

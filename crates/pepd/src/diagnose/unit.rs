//! Systemd unit of pepd: its settings, and its state.

use std::{
    collections::HashMap,
    process::{Command, Stdio},
    str::FromStr as _,
};

use caps::Capability;
use pepd_api::exit::ExitStatus;

use super::Finding;

/// Name of the unit in the package.
const NAME: &str = "pepd.service";
const PROPERTIES: &str = "LoadState,ActiveState,Result,ExecMainStatus,User,DynamicUser,AmbientCapabilities,CapabilityBoundingSet,LimitNOFILE";

/// The unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    /// Capabilities of pepd, as a mask.
    effective: u64,
    /// Limit of descriptors, if the unit has a number.
    pub descriptors: Option<u64>,
    /// Reason of the failure, if the unit was started and has failed.
    failed: Option<String>,
}

impl Unit {
    /// Returns the unit of this machine; `None` without one, or without systemd.
    pub fn current() -> Option<Self> {
        let mut command = Command::new("systemctl");
        command.args(["show", NAME, "--property", PROPERTIES]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok()?;
        Self::read(&String::from_utf8_lossy(&output.stdout))
    }

    /// Parses `systemctl show`: a property per line.
    fn read(shown: &str) -> Option<Self> {
        let lines = shown.lines().filter_map(|line| line.split_once('='));
        let of: HashMap<_, _> = lines.collect();
        if of.get("LoadState") != Some(&"loaded") {
            return None;
        }
        let mask = |name: &str| of.get(name).map_or(0, |list| mask(list));
        let bounding = mask("CapabilityBoundingSet");
        let user = of.get("User").copied().unwrap_or_default();
        let is_root = of.get("DynamicUser") != Some(&"yes") && matches!(user, "" | "root" | "0");
        let ambient = if is_root {
            u64::MAX
        } else {
            mask("AmbientCapabilities")
        };
        let result = of.get("Result").copied().unwrap_or("success");
        let code = of.get("ExecMainStatus").and_then(|code| code.parse().ok());
        Some(Self {
            effective: ambient & bounding,
            descriptors: of.get("LimitNOFILE").and_then(|most| most.parse().ok()),
            failed: (result != "success").then(|| why(result, code.unwrap_or(0))),
        })
    }

    /// Returns the unit's description, and its capabilities.
    pub fn capabilities(&self) -> (&'static str, u64) {
        ("pepd.service, as systemd starts it,", self.effective)
    }

    /// Returns a finding if the unit has failed.
    pub fn failure(&self) -> Option<Finding> {
        let why = self.failed.as_ref()?;
        Some(Finding::fail(
            "running pepd",
            format!("none: {NAME} has failed, {why}"),
            format!("see its log (`journalctl -u {NAME} -n 20`), then `systemctl restart {NAME}`"),
        ))
    }
}

/// Describes systemd's result, and the meaning of an exit code of pepd.
fn why(result: &str, code: i32) -> String {
    let meaning = match ExitStatus::from_code(code) {
        _ if result != "exit-code" => return result.to_owned(),
        ExitStatus::Usage => "its command line is invalid",
        ExitStatus::Configuration => "its configuration is invalid",
        ExitStatus::Setup => "the set-up failed",
        _ => "it failed during operation",
    };
    format!("with exit code {code}: {meaning}")
}

fn mask(list: &str) -> u64 {
    let names = list.split_whitespace().map(str::to_uppercase);
    names
        .filter_map(|name| Capability::from_str(&name).ok())
        .map(|capability| capability.bitmask())
        .fold(0, |all, one| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "ExecMainStatus=0\nDynamicUser=yes\nUser=pepd\nLoadState=loaded\nActiveState=inactive\nResult=success\n\
                         CapabilityBoundingSet=cap_net_bind_service cap_net_admin cap_net_raw\n\
                         AmbientCapabilities=cap_net_bind_service cap_net_admin cap_net_raw\nLimitNOFILE=65536\n";

    fn has(shown: &str, capability: Capability) -> bool {
        let unit = Unit::read(shown).expect("it is there");
        unit.effective & capability.bitmask() != 0
    }

    #[test]
    fn a_unit_has_what_is_in_both_of_its_sets() {
        assert!(has(SHOWN, Capability::CAP_NET_RAW));
        assert!(!has(SHOWN, Capability::CAP_SYS_ADMIN));
        for set in ["AmbientCapabilities", "CapabilityBoundingSet"] {
            let all = format!("{set}=cap_net_bind_service cap_net_admin cap_net_raw");
            let less = format!("{set}=cap_net_bind_service cap_net_admin");
            assert!(
                !has(&SHOWN.replace(&all, &less), Capability::CAP_NET_RAW),
                "{set}"
            );
        }
    }

    #[test]
    fn descriptors_of_a_unit_are_read_where_they_are_limited() {
        let descriptors = |shown: &str| Unit::read(shown).and_then(|unit| unit.descriptors);
        assert_eq!(descriptors(SHOWN), Some(65_536));
        let infinite = SHOWN.replace("65536", "infinity");
        assert_eq!(descriptors(&infinite), None);
    }

    #[test]
    fn root_has_what_is_in_the_bounding_set() {
        let root = SHOWN.replace("DynamicUser=yes\nUser=pepd", "DynamicUser=no\nUser=");
        let root = root.replace(
            "AmbientCapabilities=cap_net_bind_service cap_net_admin cap_net_raw",
            "",
        );
        assert!(has(&root, Capability::CAP_NET_RAW));
        assert!(!has(&root, Capability::CAP_SYS_ADMIN));
    }

    #[test]
    fn a_failed_unit_is_reported_with_the_cause() {
        assert_eq!(Unit::read(SHOWN).and_then(|unit| unit.failure()), None);
        let failed = SHOWN.replace("Result=success", "Result=exit-code");
        let failed = failed.replace("ExecMainStatus=0", "ExecMainStatus=4");
        let failure = Unit::read(&failed).and_then(|unit| unit.failure());
        let seen = failure.expect("it has failed").seen;
        let expected = "none: pepd.service has failed, with exit code 4: the set-up failed";
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_machine_without_the_unit_has_no_finding() {
        assert_eq!(Unit::read("LoadState=not-found\nResult=success\n"), None);
        assert_eq!(Unit::read(""), None);
    }
}

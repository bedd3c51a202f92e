//! Leftovers of a killed pepd when none runs: rules, routes and its socket.

use pep_core::config::Config;
use pepd_intercept::Interception;
use pepd_relay::survive::claim;
use pepd_sys::admin_socket;

use super::{Finding, Net, routes};

/// Looks for leftovers that no pepd uses, or keeps for the next `pepd run`.
pub(super) async fn check(config: &Config, net: &Net) -> Option<Finding> {
    if claim::user_of(config).ok()?.is_some() {
        return None;
    }
    let mut left = Vec::new();
    if Interception::is_installed(config).unwrap_or(false) {
        left.push("rules of the packet filter".to_owned());
    }
    if routes::delivers(config, net).await == Some(true) {
        left.push("policy rules and routes".to_owned());
    }
    let socket = admin_socket::path(config).filter(|path| admin_socket::is_dead(path));
    left.extend(socket.map(|path| format!("the socket {}", path.display())));
    leftovers_of(&left)
}

fn leftovers_of(left: &[String]) -> Option<Finding> {
    (!left.is_empty()).then(|| {
        Finding::info(
            "leftovers",
            format!("a killed pepd has left {}", left.join(", ")),
            "`pepd cleanup` removes them; the next `pepd run` replaces them",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn leftovers_are_listed_with_the_command_that_removes_them() {
        assert_eq!(leftovers_of(&[]), None);
        let left = [
            "rules of the packet filter",
            "the socket /run/pepd/pepd.sock",
        ];
        let found = leftovers_of(&left.map(str::to_owned)).unwrap();
        assert_eq!(found.state, State::Info);
        assert!(found.seen.ends_with(&left.join(", ")), "{found}");
        assert!(found.remedy.unwrap().contains("`pepd cleanup`"));
    }
}

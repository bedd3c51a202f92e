//! The holds of `clear = "never"`, which outlive pepd.

use pep_core::{config::Config, site::Clear};
use pepd_intercept::{HoldState, Interception};

use super::Finding;

/// Checks that both holds are in place, with pepd or without.
pub(super) async fn check(config: &Config) -> Option<Finding> {
    let sites = config.sites.iter().map(|(_, site)| site);
    let never = sites.filter(|site| site.clear == Clear::Never);
    let names: Vec<_> = never.map(|site| site.name.as_str()).collect();
    match Interception::clear_state(config).await {
        Ok(state) => Some(finding(&names, state?)),
        Err(err) => Some(Finding::unknown(
            WHAT,
            format!("cannot query the kernel: {err}"),
            "run `pepd check` as root",
        )),
    }
}

const WHAT: &str = "never in the clear";

fn finding(names: &[&str], state: HoldState) -> Finding {
    let sites = names.join(", ");
    if state.is_whole() {
        let dropped = state.dropped;
        let seen = format!(
            "sites {sites}: nothing leaves outside of the tunnel; packets dropped: {dropped}"
        );
        return Finding::ok(WHAT, seen);
    }
    let missing = match (state.table, state.policy) {
        (false, false) => "its nft table and its policy rules are missing",
        (false, true) => "its nft table is missing; policy rules drop all packets of its hosts",
        _ => "its policy rules are missing, or come after those of another program",
    };
    let remedy = "`pepd run` installs them, and keeps them in place while it runs";
    Finding::fail(WHAT, format!("sites {sites}: {missing}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn a_missing_hold_fails_and_names_the_sites() {
        let state = |table, policy| HoldState {
            table,
            policy,
            dropped: 7,
        };
        let whole = finding(&["a", "b"], state(true, true));
        assert_eq!(whole.state, State::Ok);
        assert!(
            whole.seen.contains("a, b") && whole.seen.ends_with("dropped: 7"),
            "{whole}"
        );
        for (table, policy) in [(false, true), (true, false), (false, false)] {
            let found = finding(&["a"], state(table, policy));
            assert_eq!(found.state, State::Fail, "{found}");
        }
    }
}

//! Configured rates of peers, compared with the rates that tunnels have measured.

use pepd_api::{
    status::{self, PeerStatus, SessionStatus, Status},
    text,
};

use super::Finding;

/// Returns a finding for each peer whose link is measured below a configured rate.
pub(super) fn check(status: &Status) -> Vec<Finding> {
    let found = |peer: &PeerStatus| of_session(&peer.name, peer.session.as_ref()?);
    status.peers.iter().filter_map(found).collect()
}

fn of_session(peer: &str, session: &SessionStatus) -> Option<Finding> {
    let (stated, found) = (session.stated_rate?, session.stated.as_deref()?);
    let what = format!("rate to {peer}");
    let [rate, share] = [stated, session.link_rate].map(|rate| text::bits(rate as f64));
    Some(match found {
        "less" => Finding::warn(
            what,
            status::passes(session.link_rate, stated) + "; pepd sends at the measured rate",
            format!(
                "if it lasts, set it as `rate` of [peer.{peer}], or as link.rate; new sessions start at the configured rate"
            ),
        ),
        "shared" => Finding::ok(
            what,
            format!("competing traffic fills the link; pepd gets {share} of {rate}"),
        ),
        "carried" => Finding::ok(
            what,
            format!(
                "all of {rate} was used without a standing queue: the link carries that or more. To measure more, configure more, \
                 or rate = \"auto\""
            ),
        ),
        _ => Finding::ok(
            what,
            format!("{rate} configured, not tested yet: not fully used so far"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    fn found(stated: &str) -> Finding {
        let mut status = pepd_api::testing::status();
        let session = status.peers[0].session.as_mut().expect("one");
        (session.stated_rate, session.link_rate) = (Some(10_000_000), 4_900_000);
        session.stated = Some(stated.to_owned());
        check(&status).remove(0)
    }

    #[test]
    fn a_link_below_the_configured_rate_is_reported_with_its_rate() {
        let less = found("less");
        assert_eq!(less.state, State::Warn);
        assert!(
            less.seen.contains("4.90 Mbit/s") && less.seen.contains("10.0 Mbit/s"),
            "{less}"
        );
        for (stated, word) in [
            ("shared", "competing traffic"),
            ("carried", "or more"),
            ("unused", "not fully used"),
        ] {
            let found = found(stated);
            assert_eq!(found.state, State::Ok);
            assert!(found.seen.contains(word), "{found}");
        }
    }

    #[test]
    fn without_a_configured_or_measured_rate_there_is_no_finding() {
        assert_eq!(check(&pepd_api::testing::status()), []);
    }
}

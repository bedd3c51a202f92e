//! Stated rates of peers, beside what tunnels have measured of their links.

use pepd_api::{
    status::{self, PeerStatus, SessionStatus, Status},
    text,
};

use super::Finding;

/// A finding for each peer whose link is measured below a stated rate.
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
            status::passes(session.link_rate, stated) + "; pepd sends what it passes",
            format!(
                "if that lasts, state it: `rate` of [peer.{peer}], else link.rate; new sessions begin at the stated rate"
            ),
        ),
        "shared" => Finding::ok(
            what,
            format!("others fill the link, and pepd has {share} of {rate}"),
        ),
        "carried" => Finding::ok(
            what,
            format!(
                "all of {rate} has been used, and no queue stood: the link passes at least that. Whether it passes more shows only where more is \
                 stated, or rate = \"auto\""
            ),
        ),
        _ => Finding::ok(what, format!("{rate} as stated, not used up so far")),
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
    fn a_link_that_passes_less_than_stated_is_told_with_what_it_passes() {
        let less = found("less");
        assert_eq!(less.state, State::Warn);
        assert!(
            less.seen.contains("4.90 Mbit/s") && less.seen.contains("10.0 Mbit/s"),
            "{less}"
        );
        for (stated, word) in [
            ("shared", "others"),
            ("carried", "at least"),
            ("unused", "not used up"),
        ] {
            let found = found(stated);
            assert_eq!(found.state, State::Ok);
            assert!(found.seen.contains(word), "{found}");
        }
    }

    #[test]
    fn nothing_is_told_where_nothing_is_stated_or_measured() {
        assert_eq!(check(&pepd_api::testing::status()), []);
    }
}

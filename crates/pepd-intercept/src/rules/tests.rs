use pep_core::site::InterceptionLoss;

use super::{conditions::joined, *};

/// Past rules of other programs in the forward hook.
fn config(text: &str) -> Config {
    with_forward("ignore", text)
}

fn obeying(text: &str) -> Config {
    with_forward("obey", text)
}

fn with_forward(forward: &str, text: &str) -> Config {
    let begin = format!("[intercept]\nforward = \"{forward}\"\n");
    let text = text.replacen("[intercept]\n", &begin, 1);
    pep_core::config::parse(&text).expect("a valid configuration")
}

fn terms_of<'a>(ruleset: &'a Ruleset, chain: &str) -> Vec<&'a [Term]> {
    let chain = ruleset.chains.iter().find(|it| it.name == chain);
    let rules = &chain.expect("a chain of that name").rules;
    rules.iter().map(|rule| rule.terms.as_slice()).collect()
}

/// Returns the rules that select sites, without those for end-to-end connections.
fn sites_of(ruleset: &Ruleset) -> Vec<&[Term]> {
    let mut rules = terms_of(ruleset, "sites");
    let passes = [Counter::PassedEndToEnd, Counter::PassedOtherRoute].map(Term::Count);
    let leaves = |term: &Term| match term {
        Term::Jump(chain) => {
            follows_state(chain) || chain.starts_with("off_") || chain == OTHER_ROUTE
        }
        term => passes.contains(term),
    };
    rules.retain(|terms| !terms.iter().any(leaves));
    rules
}

const PLAIN: &str = "[intercept]\nlan = [\"lan0\"]\n";

#[test]
fn the_smallest_configuration_takes_everything_but_what_is_for_us() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let sites = sites_of(&ruleset);
    let expected: [&[Term]; 2] = [
        &[Term::ForThisMachine, Term::Accept],
        &[Term::Goto("site_0".to_owned())],
    ];
    assert_eq!(sites, expected);
    assert!(
        ruleset
            .chains
            .iter()
            .all(|chain| !chain.name.starts_with("hold"))
    );
}

#[test]
fn tproxy_comes_before_notrack_and_mark() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let site = terms_of(&ruleset, "site_0");
    let tproxy: Vec<_> = site
        .iter()
        .filter(|terms| terms.contains(&Term::Notrack))
        .collect();
    assert_eq!(tproxy.len(), 4);
    for terms in tproxy {
        let at = |wanted: &dyn Fn(&Term) -> bool| terms.iter().position(wanted).expect("a term");
        let listener = at(&|term| matches!(term, Term::Tproxy(_, 5000)));
        assert!(listener < at(&|term| *term == Term::Notrack), "{terms:?}");
        assert!(
            listener < at(&|term| matches!(term, Term::SetMark(_))),
            "{terms:?}"
        );
    }
}

#[test]
fn a_syn_that_cannot_be_remembered_passes_but_where_it_was_held() {
    let is_passed = |text: &str| {
        let ruleset = Ruleset::new(&config(text), Features::FULL);
        let site = terms_of(&ruleset, "site_0");
        let has = |terms: &[Term], wanted: fn(&Term) -> bool| terms.iter().any(wanted);
        let together = site.iter().filter(|terms| {
            has(terms, |term| matches!(term, Term::Remember(_)))
                && has(terms, |term| matches!(term, Term::Tproxy(..)))
        });
        together.count() == 2
    };
    assert!(is_passed(PLAIN));
    assert!(!is_passed(&format!("{PLAIN}syn = \"defer\"\n")));
}

#[test]
fn new_flows_are_looked_at_after_full_sockets_and_before_half_open_ones() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let rules = terms_of(&ruleset, "from_hosts");
    let position = |wanted: &dyn Fn(&[Term]) -> bool| {
        rules
            .iter()
            .position(|terms| wanted(terms))
            .expect("a rule")
    };
    let full =
        position(&|terms| matches!(terms, [Term::SocketTransparent, Term::SocketMark(_), ..]));
    let new = position(&|terms| terms.first() == Some(&Term::Syn));
    let half_open = position(&|terms| matches!(terms, [Term::SocketTransparent, Term::Jump(_)]));
    assert!(full < new && new < half_open);
}

#[test]
fn a_prefix_of_one_family_makes_rules_of_that_family_only() {
    let text = format!(
        "{PLAIN}[[site]]\nname = \"a\"\nmatch = {{ src = [\"10.0.0.0/9\", \"10.128.0.0/9\"], dport = [443, 80, \"81-90\"] }}\n"
    );
    let ruleset = Ruleset::new(&config(&text), Features::FULL);
    let rule = sites_of(&ruleset)[1];
    let net: Ipv4Net = "10.0.0.0/8".parse().unwrap();
    let ports = vec![PortRange::new(80, 90).unwrap(), PortRange::single(443)];
    let expected = [
        Term::Source(Prefixes::V4(vec![net])),
        Term::DestinationPort(ports),
        Term::Goto("site_0".to_owned()),
    ];
    assert_eq!(rule, expected);
}

#[test]
fn prefixes_of_both_families_never_meet() {
    let text = format!(
        "{PLAIN}[[site]]\nname = \"a\"\nmatch = {{ src = [\"10.0.0.0/8\"], dst = [\"fd00::/8\"] }}\n"
    );
    let ruleset = Ruleset::new(&config(&text), Features::FULL);
    assert_eq!(sites_of(&ruleset).len(), 2, "no rule for site a");
}

#[test]
fn a_bypassed_site_is_never_redirected() {
    let text = format!(
        "{PLAIN}[[site]]\nname = \"a\"\nmode = \"bypass\"\nmatch = {{ dport = [22], interface = [\"lan0\"] }}\n"
    );
    let ruleset = Ruleset::new(&config(&text), Features::FULL);
    let expected = [
        Term::From(vec!["lan0".to_owned()]),
        Term::DestinationPort(vec![PortRange::single(22)]),
        Term::Accept,
    ];
    assert_eq!(sites_of(&ruleset)[1], expected);
    assert!(ruleset.chains.iter().all(|chain| chain.name != "site_0"));
}

#[test]
fn a_deferred_site_holds_what_comes_from_the_lan_and_takes_what_comes_from_the_tun() {
    let text = "[intercept]\nlan = [\"lan0\", \"lan1\"]\n[[site]]\nname = \"a\"\nsyn = \"defer\"\n\
                match = { interface = [\"lan1\"] }\n";
    let ruleset = Ruleset::new(&config(text), Features::FULL);
    let names = |names: &[&str]| Term::From(names.iter().map(|&name| name.into()).collect());
    let sites = sites_of(&ruleset);
    let filtered = [
        names(&["lan1"]),
        Term::Syn,
        Term::Jump("filtered".to_owned()),
    ];
    assert_eq!(sites[1], filtered);
    let hold = [names(&["lan1"]), Term::Syn, Term::Goto("hold_1".to_owned())];
    assert_eq!(sites[2], hold);
    let take = [names(&["lan1", "pepd1"]), Term::Goto("site_0".to_owned())];
    assert_eq!(sites[3], take);
    let hold = terms_of(&ruleset, "hold_1");
    let tun = Term::RoutedTo("pepd1".to_owned());
    assert_eq!(hold[0], [Term::Jump("held_rate".to_owned())]);
    for (terms, family) in hold[1..3].iter().zip(Family::ALL) {
        assert_eq!(terms[0], Term::Of(family));
        assert!(terms.contains(&tun) && terms.contains(&Term::Notrack));
    }
    assert_eq!(hold[3], [Term::SetMark(0), Term::Accept]);
}

#[test]
fn marks_are_set_again_behind_all_other_programs() {
    let text = format!("{PLAIN}syn = \"defer\"\n");
    let ruleset = Ruleset::new(&config(&text), Features::FULL);
    let again = ruleset
        .chains
        .iter()
        .find(|chain| chain.name == "marks_again");
    assert_eq!(again.expect("it is there").hook, Some(Hook::PreroutingLast));
    let (local, tun, none) = (0x5300_0000, 0x5400_0000, 0);
    let expected = [(0x53, local), (0x50, none), (0x54, tun)];
    let expected = expected.map(|(tag, mark)| vec![Term::Tagged(tag), Term::SetMark(mark)]);
    let again = terms_of(&ruleset, "marks_again");
    let (kept, again) = again.split_at(2);
    assert_eq!(again, expected);
    // The earlier rules look at marks of other programs only, and at SYNs that pepd takes.
    for (terms, tag) in kept.iter().zip([0x53, 0x54]) {
        assert!(terms.contains(&Term::Tagged(tag)) && terms.contains(&Term::Syn));
        assert_eq!(terms.last(), Some(&Term::Jump("kept_marks".to_owned())));
    }
    // Its mark leads into the TUN only after the filters of other programs.
    let into = terms_of(&ruleset, "hold_0")[1];
    let marks = into.iter().filter(|term| matches!(term, Term::SetMark(_)));
    let marks: Vec<_> = marks.collect();
    assert_eq!(marks, [&Term::SetMark(tun), &Term::SetMark(0)]);
    let without = Features {
        tags: false,
        marks: false,
        ..Features::FULL
    };
    let ruleset = Ruleset::new(&config(&text), without);
    assert!(
        ruleset
            .chains
            .iter()
            .all(|chain| chain.name != "marks_again")
    );
    let mut rules = ruleset.chains.iter().flat_map(|chain| &chain.rules);
    let tags = |term: &Term| matches!(term, Term::Tag(_) | Term::Tagged(_));
    assert!(!rules.any(|rule| rule.terms.iter().any(tags)));
}

#[test]
fn what_does_not_cross_the_link_is_left_to_the_kernel() {
    let lans = "[intercept]\nlan = [\"lan0\", \"lan1\"]\n";
    let link = |name: &str| format!("[link]\ninterface = \"{name}\"\n");
    let of_site = |more: &str, site: &str| {
        let ruleset = Ruleset::new(&config(&format!("{lans}{more}{site}")), Features::FULL);
        let rules = terms_of(&ruleset, "sites");
        let passes = rules
            .iter()
            .filter(|terms| terms.contains(&Term::Count(Counter::PassedOtherRoute)));
        let sites = ruleset.chains.iter().find(|chain| chain.name == "sites");
        // Of the first site.
        let mut rules_of_first = sites
            .unwrap()
            .rules
            .iter()
            .take_while(|rule| rule.comment != "default");
        let jump = Term::Jump(OTHER_ROUTE.to_owned());
        let jumps = rules_of_first.any(|rule| rule.terms.contains(&jump));
        (
            passes.map(|terms| terms.to_vec()).collect::<Vec<_>>(),
            jumps,
        )
    };
    let of = |more: &str| of_site(more, "[[site]]\nname = \"all\"\n");
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    let passes = |hosts: &[&str]| {
        let hosts = names(hosts);
        let ends = [Term::Count(Counter::PassedOtherRoute), Term::Accept];
        let begin = [
            Term::From(hosts.clone()),
            Term::Syn,
            Term::RoutedToAny(hosts),
        ];
        vec![[&begin[..], &ends].concat()]
    };
    assert_eq!(of(""), (Vec::new(), false), "any might be the link");
    let known = of(&link("sat0"));
    assert_eq!(known, (passes(&["lan0", "lan1"]), true));
    let by_lan = of(&link("lan1"));
    assert_eq!(
        by_lan,
        (passes(&["lan0"]), false),
        "hosts open from beyond it"
    );
    let split = format!("{}elsewhere = \"split\"\n", link("sat0"));
    assert!(!of(&split).1);
    let hub = "[identity]\nkey_file = \"k\"\n[peer.hub]\nendpoint = \"192.0.2.1:5001\"\n\
               public_key = \"q7zRcAbzlP1ZFUyaGWaLZjVvJtO8JLAqxvrvdNnIhzI=\"\n";
    let tunnel = "[[site]]\nname = \"all\"\nmode = \"tunnel\"\npeer = \"hub\"\n";
    let (passed, jumps) = of_site(&format!("{}{hub}", link("sat0")), tunnel);
    assert!(!jumps, "it might leave the tunnel");
    let near = |family: Family| {
        let has = |terms: &Vec<Term>| terms.contains(&Term::ToNear(family));
        passed.iter().any(has)
    };
    assert!(near(Family::V4) && near(Family::V6));
    let (passed, _) = of_site(&format!("{split}{hub}"), tunnel);
    assert_eq!(
        passed,
        passes(&["lan0", "lan1"]),
        "all else as the operator says"
    );
}

#[test]
fn legs_that_leave_beside_the_link_are_noted() {
    let of = |features, more: &str| {
        let text = format!("[intercept]\nlan = [\"lan0\"]\n{more}");
        Ruleset::new(&config(&text), features)
    };
    let link = |name: &str| format!("[link]\ninterface = \"{name}\"\n");
    let mut ruleset = of(Features::FULL, &link("sat0"));
    assert_eq!(ruleset.off_link, Family::ALL);
    let none: [&[Term]; 0] = [];
    assert_eq!(
        terms_of(&ruleset, "leaving"),
        none,
        "fib knows one next hop"
    );
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    ruleset.set_hops(&set(&["lte0", "sat0"]));
    let sat0 = vec!["sat0".to_owned()];
    let noted = terms_of(&ruleset, "leaving");
    let other = [Term::NotTo(sat0.clone()), Term::OffLink(Family::V6)];
    let again = [Term::To(sat0), Term::OnLink(Family::V4)];
    assert!(noted.contains(&&other[..]) && noted.contains(&&again[..]));
    ruleset.set_hops(&set(&["sat0"]));
    assert_eq!(terms_of(&ruleset, "leaving"), none);
    let old = Features {
        recent: false,
        ..Features::FULL
    };
    let split = format!("{}other_routes = \"split\"\n", link("sat0"));
    let all = (Features::FULL, "lan0");
    for (features, more) in [
        (old, link("sat0")),
        (all.0, link(all.1)),
        (all.0, split),
        (all.0, String::new()),
    ] {
        let ruleset = of(features, &more);
        let chain = ruleset.chains.iter().find(|it| it.name == "leaving");
        assert!(chain.is_none() && ruleset.off_link.is_empty(), "{more}");
        assert_eq!(ruleset.judged_link, None);
    }
}

#[test]
fn routes_by_any_of_several_next_hops_may_lead_by_the_link() {
    let text = "[intercept]\nlan = [\"lan0\"]\n[link]\ninterface = \"sat0\"\n";
    let mut ruleset = Ruleset::new(&config(text), Features::FULL);
    let before = ruleset.clone();
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert!(ruleset.set_hops(&set(&["sat0"])).is_empty(), "as before");
    let changed = ruleset.set_hops(&set(&["lte0", "sat0"]));
    let names = changed.iter().map(|(name, _)| name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["leaving", OTHER_ROUTE, "kept_marks"]
    );
    let judges = Term::RoutedByOther(vec!["lte0".to_owned(), "sat0".to_owned()]);
    for (_, rules) in &changed[1..] {
        assert!(rules.iter().any(|rule| rule.terms.contains(&judges)));
    }
    assert_ne!(ruleset, before, "a table that is reinstalled has them");
    assert_eq!(ruleset.set_hops(&set(&["sat0"])).len(), 3);
    assert_eq!(ruleset, before);
}

#[test]
fn a_loss_is_of_a_family() {
    let of = |families: &[Family], instead| {
        let rules = lost(families, instead);
        rules.into_iter().map(|rule| rule.terms).collect::<Vec<_>>()
    };
    assert!(of(&[], InterceptionLoss::Pass).is_empty());
    let passed = vec![
        Term::Of(Family::V4),
        Term::Count(Counter::PassedLost),
        Term::Accept,
    ];
    assert_eq!(of(&[Family::V4], InterceptionLoss::Pass), [passed]);
    let blocked = vec![
        Term::Of(Family::V6),
        Term::Count(Counter::BlockedLost),
        Term::Drop,
    ];
    assert_eq!(of(&[Family::V6], InterceptionLoss::Block), [blocked]);
}

#[test]
fn what_is_to_be_held_is_counted_by_the_second_first() {
    let text =
        format!("{PLAIN}syn = \"defer\"\n[limits]\nheld_rate = 70\nheld_rate_per_source = 7\n");
    let ruleset = Ruleset::new(&config(&text), Features::FULL);
    assert_eq!(
        terms_of(&ruleset, "hold_0")[0],
        [Term::Jump("held_rate".to_owned())]
    );
    let passes = |faster: Term| vec![faster, Term::Count(Counter::PassedRate), Term::Accept];
    let expected = [
        passes(Term::FasterPerHost(Limited::Held, Family::V4, 7)),
        passes(Term::FasterPerHost(Limited::Held, Family::V6, 7)),
        passes(Term::Faster(70)),
    ];
    assert_eq!(terms_of(&ruleset, "held_rate"), expected);
    let poor = Features {
        rate: false,
        ..Features::FULL
    };
    for without in [
        Ruleset::new(&config(&text), poor),
        Ruleset::new(&config(PLAIN), Features::FULL),
    ] {
        let held = |(limited, _): &(Limited, Family)| *limited == Limited::Held;
        assert!(!without.rates.iter().any(held));
        assert!(without.chains.iter().all(|chain| chain.name != "held_rate"));
    }
}

#[test]
fn without_dynset_or_fib_the_rules_that_need_them_are_missing() {
    let poor = Features {
        ipv6: false,
        recent: false,
        forget: false,
        fib: false,
        rate: false,
        wildcard: false,
        seen: false,
        tags: false,
        marks: false,
        errors: false,
        copies: false,
    };
    let ruleset = Ruleset::new(&config(PLAIN), poor);
    let all = ruleset.chains.iter().flat_map(|chain| &chain.rules);
    let terms: Vec<&Term> = all.flat_map(|rule| &rule.terms).collect();
    assert!(ruleset.recent.is_empty());
    assert!(!terms.iter().any(|term| matches!(
        term,
        Term::IsRecent(_)
            | Term::Remember(_)
            | Term::Forget(_)
            | Term::ForThisMachine
            | Term::Seen
            | Term::RoutedTo(_)
    )));
    assert!(
        !terms
            .iter()
            .any(|term| matches!(term, Term::Tproxy(Family::V6, _)))
    );
}

#[test]
fn a_syn_that_passes_is_not_recent() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let place = |name: &str| ruleset.chains.iter().position(|chain| chain.name == name);
    assert!(place("passed_syns") > place("from_hosts"));
    let lan = || Term::From(vec!["lan0".to_owned()]);
    let forgets = |family| vec![lan(), Term::Syn, Term::Mark(0), Term::Forget(family)];
    let expected = [Family::V4, Family::V6].map(forgets);
    let rules = terms_of(&ruleset, "passed_syns");
    let (taken, passed) = rules.split_at(rules.len() - expected.len());
    assert_eq!(passed, expected);
    // Until `marks_again`, only their tags tell SYNs that go into a TUN from those that pass.
    let ends = |terms: &&[Term]| matches!(terms, [Term::Tagged(_), Term::Accept]);
    assert!(!taken.is_empty() && taken.iter().all(ends));
    let old = Features {
        forget: false,
        ..Features::FULL
    };
    let ruleset = Ruleset::new(&config(PLAIN), old);
    assert!(
        ruleset
            .chains
            .iter()
            .all(|chain| chain.name != "passed_syns")
    );
}

#[test]
fn the_end_of_a_flow_is_seen_before_it_is_delivered() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let rules = terms_of(&ruleset, "from_hosts");
    let forgets = |terms: &&[Term]| matches!(terms.last(), Some(Term::Forget(_)));
    let delivers = |terms: &&[Term]| matches!(terms.first(), Some(Term::SocketTransparent));
    let first = rules.iter().position(delivers);
    let forgetting = &rules[..first.expect("a rule")];
    assert_eq!(forgetting.iter().filter(|terms| forgets(terms)).count(), 2);
    let old = Features {
        forget: false,
        ..Features::FULL
    };
    let ruleset = Ruleset::new(&config(PLAIN), old);
    assert!(!terms_of(&ruleset, "from_hosts").iter().any(forgets));
}

#[test]
fn what_is_not_to_be_split_passes_before_any_site_has_it() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let rules = terms_of(&ruleset, "sites");
    let passes = [Term::Count(Counter::PassedEndToEnd), Term::Accept];
    let (passing, rest) = rules[1..].split_at(4);
    assert!(passing.iter().all(|terms| terms.ends_with(&passes)));
    assert_eq!(passing[1][1], Term::TcpOption(29));
    assert_eq!(passing[3][2], Term::HopsAbove(Family::V6, 128));
    let lost = [Term::Syn, Term::Jump("lost_0".to_owned())];
    assert_eq!(rest, [&lost[..], &[Term::Goto("site_0".to_owned())]]);
}

#[test]
fn port_ranges_are_joined() {
    let range = |first, last| PortRange::new(first, last).unwrap();
    let ranges = [
        range(100, 200),
        range(1, 5),
        range(150, 300),
        range(6, 6),
        range(65535, 65535),
    ];
    assert_eq!(
        joined(&ranges),
        [range(1, 6), range(100, 300), range(65535, 65535)]
    );
}

#[test]
fn tun_names_fit_into_an_interface_name() {
    let text = format!("{PLAIN}table = \"a_table_with_quite_a_long_name\"\nsyn = \"defer\"\n");
    let tun = lans(&config(&text))[0].tun.clone();
    assert_eq!(tun.as_deref(), Some("a_table_with0"));
}

#[test]
fn a_syn_meets_the_rules_of_all_programs_and_then_comes_out_of_its_tun() {
    let ruleset = Ruleset::new(&obeying(PLAIN), Features::FULL);
    let lan = || Term::From(vec!["lan0".to_owned()]);
    let to = |chain: &str| Term::Goto(chain.to_owned());
    let sites = sites_of(&ruleset);
    let forwarded = sites
        .iter()
        .position(|terms| **terms == [lan(), Term::Syn, Term::Jump("ask_0".to_owned())]);
    let unrouted = [lan(), Term::Syn, Term::NoRoute, to("hold_0")];
    let unrouted = sites.iter().position(|terms| **terms == unrouted);
    let taken = sites.iter().position(|terms| **terms == [to("site_0")]);
    let order = [unrouted, forwarded, taken].map(|place| place.expect("a rule"));
    assert!(order.is_sorted(), "{sites:?}");
    // It must find the TUN there, and leave with no mark of pepd.
    for terms in &terms_of(&ruleset, "ask_0")[2..4] {
        let [_, mark, there, clear, ask, ..] = terms else {
            panic!("{terms:?}");
        };
        assert!(matches!(
            (mark, there),
            (Term::SetMark(1..), Term::RoutedTo(_))
        ));
        assert!(matches!((clear, ask), (Term::SetMark(0), Term::Ask(_))));
        assert_eq!(terms.last(), Some(&Term::Accept));
    }
    let permitted = ruleset
        .chains
        .iter()
        .find(|chain| chain.name == "permitted");
    let permitted = permitted.expect("a chain");
    assert_eq!(permitted.hook, Some(Hook::ForwardLast));
    for rule in &permitted.rules {
        assert!(matches!(rule.terms[..], [.., Term::Copy(_), Term::Drop]));
    }
}

#[test]
fn where_syns_meet_no_rules_of_others_none_is_forwarded() {
    let never = "[link]\ninterface = \"wan0\"\n[identity]\nkey_file = \"k\"\n[peer.hub]\n\
                 endpoint = \"192.0.2.1:1\"\non_peer_loss = \"hold\"\n\
                 public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
                 [[site]]\nname = \"a\"\nmode = \"tunnel\"\npeer = \"hub\"\nclear = \"never\"\n\
                 match = { src = [\"10.0.0.0/8\"] }\n";
    let incapable = Features {
        copies: false,
        ..Features::FULL
    };
    let of_never = Ruleset::new(&obeying(&format!("{PLAIN}{never}")), Features::FULL);
    let asks = |terms: &[Term]| terms.contains(&Term::Jump("ask_0".to_owned()));
    let sites = sites_of(&of_never);
    let first = sites
        .iter()
        .position(|terms| terms.contains(&Term::Goto("site_0".to_owned())));
    let asked = sites.iter().position(|terms| asks(terms));
    assert!(first.expect("a rule") < asked.expect("a rule"));
    for ruleset in [
        Ruleset::new(&config(PLAIN), Features::FULL),
        Ruleset::new(&obeying(PLAIN), incapable),
        Ruleset::new(&with_forward("auto", PLAIN), crate::iptables::FEATURES),
    ] {
        assert!(!sites_of(&ruleset).iter().any(|terms| asks(terms)));
        assert!(ruleset.asked.is_empty());
    }
}

#[test]
fn packets_of_connections_that_began_elsewhere_are_copied_unless_they_pass() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    assert!(ruleset.copies_to(5000));
    let text = PLAIN.to_owned() + "midway = \"pass\"\n";
    let passing = Ruleset::new(&config(&text), Features::FULL);
    assert!(!passing.copies_to(5000));
    assert!(passing.rates.is_empty());
}

/// One host may send segments of thousands of connections that never were.
#[test]
fn copies_of_packets_are_limited_per_source() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    for side in ["copy_from_hosts", "copy_to_hosts"] {
        let [v4, v6, copies] = terms_of(&ruleset, side)[..] else {
            panic!("three rules");
        };
        for (terms, family) in [(v4, Family::V4), (v6, Family::V6)] {
            let faster = Term::FasterPerHost(Limited::Copied, family, 250);
            assert_eq!(terms, [faster, Term::Return]);
        }
        assert!(matches!(
            copies,
            [Term::Within(2000), Term::Copy(_), Term::Return]
        ));
    }
    // No packet of a known connection meets more rules than before.
    assert_eq!(terms_of(&ruleset, "midway").len(), 4);
    let text = crate::nft::install_transaction(&ruleset);
    assert!(text.contains("update @copied6 { ip6 saddr & ffff:ffff:ffff:ffff:: limit"));
    let by_iptables = Ruleset::new(&config(PLAIN), crate::iptables::FEATURES);
    assert!(by_iptables.rates.is_empty() && by_iptables.copies_to(5000));
}

/// A site in mode `tunnel` beside the built-in one.
const TUNNEL: &str = "[link]\ninterface = \"wan0\"\n[identity]\nkey_file = \"k\"\n[peer.hub]\n\
    endpoint = \"192.0.2.1:1\"\n\
    public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
    [[site]]\nname = \"a\"\nmode = \"tunnel\"\npeer = \"hub\"\nmatch = { dport = [443] }\n";

#[test]
fn syns_to_tunnels_are_never_forwarded_beyond_a_limit() {
    let ruleset = Ruleset::new(
        &with_forward("auto", &format!("{PLAIN}{TUNNEL}")),
        Features::FULL,
    );
    let sites = sites_of(&ruleset);
    let asks = |chain: &str| {
        let jump = Term::Jump(chain.to_owned());
        sites.iter().position(|terms| terms.contains(&jump))
    };
    let [tunnel, split] = ["ask_tunnel_0", "ask_0"].map(|chain| asks(chain).expect("a rule"));
    assert!(tunnel < split);
    let ends = |chain: &str| {
        let rules = terms_of(&ruleset, chain).into_iter();
        rules.map(|terms| terms.last().cloned()).collect::<Vec<_>>()
    };
    assert!(
        ends("tunnel_rate")
            .iter()
            .all(|end| *end == Some(Term::Drop))
    );
    assert!(
        ends("held_rate")
            .iter()
            .all(|end| *end == Some(Term::Accept))
    );
    assert_eq!(ends("ask_tunnel_0")[1], Some(Term::Drop));
    assert_eq!(ends("ask_0")[1], Some(Term::Accept));
}

/// With `source = "self"` legs share addresses and ports with other programs of this machine.
#[test]
fn any_syn_of_this_machine_begins_a_connection() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let rules = terms_of(&ruleset, "to_hosts");
    for family in Family::ALL {
        let begins = [Term::Syn, Term::Begins(Way::ToServer, family)];
        assert!(rules.contains(&&begins[..]), "{rules:?}");
    }
}

/// A host that floods the set must not send connections of others out in the clear.
#[test]
fn a_syn_to_a_tunnel_for_which_there_is_no_room_is_dropped() {
    let text = format!("{PLAIN}{TUNNEL}");
    let dropped = |family| {
        vec![
            Term::Syn,
            Term::Tproxy(family, 5000),
            Term::Count(Counter::DroppedRate),
            Term::Drop,
        ]
    };
    let passes = vec![Term::Syn, Term::Count(Counter::PassedRecent), Term::Accept];
    let ruleset = Ruleset::new(&config(&text), Features::FULL);
    let rules = terms_of(&ruleset, "site_0");
    // Without a listener it passes, as no pepd runs.
    let expected = [dropped(Family::V4), dropped(Family::V6), passes.clone()];
    assert_eq!(rules[rules.len() - 3..], expected);
    assert_eq!(terms_of(&ruleset, "site_1").last(), Some(&&passes[..]));
    assert!(ruleset.counters.contains(&Counter::DroppedRate));
    let ruleset = Ruleset::new(&obeying(&text), Features::FULL);
    let drops = [Term::Syn, Term::Count(Counter::DroppedRate), Term::Drop];
    assert_eq!(terms_of(&ruleset, "site_0").last(), Some(&&drops[..]));
}

/// Without its mark a server leg might take another path.
#[test]
fn a_syn_whose_mark_finds_no_room_is_dropped() {
    let ruleset = Ruleset::new(&config(PLAIN), Features::FULL);
    let full = [Term::Count(Counter::Unkept), Term::Drop];
    assert_eq!(terms_of(&ruleset, "kept_marks").last(), Some(&&full[..]));
    let text = crate::nft::install_transaction(&ruleset);
    let map = text.split("map marks").nth(1).expect("a map");
    let timeout = map.split("timeout ").nth(1).expect("a timeout");
    assert!(timeout.starts_with("10s"), "{timeout}");
}

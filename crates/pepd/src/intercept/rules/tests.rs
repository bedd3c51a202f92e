use super::{build::joined, *};

fn config(text: &str) -> Config {
    pep_core::config::parse(text).expect("a valid configuration")
}

fn terms_of<'a>(ruleset: &'a Ruleset, chain: &str) -> Vec<&'a [Term]> {
    let chain = ruleset.chains.iter().find(|it| it.name == chain);
    let rules = &chain.expect("a chain of that name").rules;
    rules.iter().map(|rule| rule.terms.as_slice()).collect()
}

/// The rules by which sites are chosen, without those of connections that are not split.
fn sites_of(ruleset: &Ruleset) -> Vec<&[Term]> {
    let mut rules = terms_of(ruleset, "sites");
    rules.retain(|terms| !terms.contains(&Term::Count(Counter::PassedEndToEnd)));
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
    let half_open =
        position(&|terms| matches!(terms, [Term::SocketTransparent, Term::SetMark(_), ..]));
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
    let hold = [names(&["lan1"]), Term::Syn, Term::Goto("hold_1".to_owned())];
    assert_eq!(sites[1], hold);
    let take = [names(&["lan1", "pepd1"]), Term::Goto("site_0".to_owned())];
    assert_eq!(sites[2], take);
    let hold = terms_of(&ruleset, "hold_1");
    let tun = Term::RoutedTo("pepd1".to_owned());
    assert_eq!(hold[0], [Term::Jump("held_rate".to_owned())]);
    assert!(hold[1].contains(&tun) && hold[1].contains(&Term::Notrack));
    assert_eq!(hold[2], [Term::SetMark(0), Term::Accept]);
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
        passes(Term::FasterPerHost(Family::V4, 7)),
        passes(Term::FasterPerHost(Family::V6, 7)),
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
        assert!(without.rates.is_empty());
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
        seen: false,
        errors: false,
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
    assert_eq!(rest.len(), 1);
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

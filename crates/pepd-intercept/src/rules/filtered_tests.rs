use super::super::*;

const PLAIN: &str = "[intercept]\nlan = [\"lan0\"]\nforward = \"ignore\"\n";

fn ruleset(more: &str, features: Features) -> Ruleset {
    let config = pep_core::config::parse(&format!("{PLAIN}{more}"));
    Ruleset::new(&config.expect("valid"), features)
}

fn terms_of<'a>(ruleset: &'a Ruleset, chain: &str) -> Vec<&'a [Term]> {
    let chain = ruleset.chains.iter().find(|one| one.name == chain);
    let rules = &chain.expect("a chain of that name").rules;
    rules.iter().map(|rule| rule.terms.as_slice()).collect()
}

fn jump(chain: &str) -> Term {
    Term::Jump(chain.to_owned())
}

/// One that passes never reaches pepd, which says nothing about rules of other programs.
#[test]
fn a_syn_is_noted_only_once_nothing_else_lets_it_pass() {
    let ruleset = ruleset("", Features::FULL);
    let rules = terms_of(&ruleset, "site_0");
    let place = |wanted: &dyn Fn(&Term) -> bool| {
        let has = |terms: &&[Term]| terms.iter().any(wanted);
        rules.iter().position(has).expect("a rule")
    };
    let chain = |name: &str| place(&|term| *term == jump(name));
    let order = [chain("filtered"), chain("no_route"), chain("repeated")];
    assert!(order.is_sorted(), "{rules:?}");
    assert!(matches!(rules[order[2] + 1][1], Term::Remember(_)));
    // A full set, or no listener.
    let [.., forgets4, forgets6, passes] = rules[..] else {
        panic!("{rules:?}");
    };
    assert_eq!(forgets4, [Term::Syn, Term::Heard(Family::V4)]);
    assert_eq!(forgets6, [Term::Syn, Term::Heard(Family::V6)]);
    assert!(passes.contains(&Term::Count(Counter::PassedRecent)));
}

#[test]
fn a_host_goes_on_with_the_syn_that_tells_of_the_loss() {
    let ruleset = ruleset("", Features::FULL);
    let rules = terms_of(&ruleset, "repeated").into_iter();
    let lost = rules.filter(|terms| terms.contains(&jump("filtered")));
    let lost: Vec<_> = lost.collect();
    assert_eq!(lost.len(), 2);
    for (terms, family) in lost.into_iter().zip(Family::ALL) {
        let place = |wanted: Term| terms.iter().position(|term| *term == wanted);
        let order = [
            place(Term::IsUnheard(family)),
            place(Term::Filtered(Filtered::Host, family)),
            place(Term::Heard(family)),
            place(Term::From(vec!["lan0".to_owned()])),
            place(Term::Syn),
            place(jump("filtered")),
        ];
        assert!(order.is_sorted() && order[0].is_some(), "{terms:?}");
    }
}

#[test]
fn syns_out_of_a_tun_are_noted_and_taken_back_too() {
    let ruleset = ruleset("syn = \"defer\"\n", Features::FULL);
    let rules = terms_of(&ruleset, "site_0");
    assert_eq!(rules[0], [Term::Syn, jump("repeated")]);
    let [.., forgets4, forgets6] = rules[..] else {
        panic!("{rules:?}");
    };
    assert_eq!(forgets4, [Term::Syn, Term::Heard(Family::V4)]);
    assert_eq!(forgets6, [Term::Syn, Term::Heard(Family::V6)]);
}

#[test]
fn sites_that_let_nothing_pass_note_nothing() {
    let ruleset = ruleset(
        "[[site]]\nname = \"a\"\non_interception_loss = \"block\"\n",
        Features::FULL,
    );
    let rules = terms_of(&ruleset, "site_0");
    let notes = |term: &Term| *term == jump("repeated") || matches!(term, Term::Heard(_));
    assert!(!rules.iter().any(|terms| terms.iter().any(notes)));
}

/// The kernel drops such packets before the hook `input`, and anyone can send them.
#[test]
fn what_may_be_forged_is_not_noted() {
    let link = "[link]\ninterface = \"wan0\"\n";
    let lan = || Term::From(vec!["lan0".to_owned()]);
    let before = |more: &str, features, chain: &str| {
        let ruleset = ruleset(more, features);
        let rules = terms_of(&ruleset, chain).into_iter();
        let ends = rules.skip_while(|terms| terms[0] == Term::Count(Counter::Answered));
        let ends = ends.take_while(|terms| terms.last() == Some(&Term::Return));
        ends.map(<[Term]>::to_vec).collect::<Vec<_>>()
    };
    let options = || vec![Term::IpOptions, Term::Return];
    let other = || vec![Term::NotBehind, Term::Return];
    let of_lan = || vec![lan(), Term::Return];
    let forged = vec![vec![lan(), Term::NotBehind, Term::Return], options()];
    assert_eq!(before("", Features::FULL, "repeated"), forged);
    assert_eq!(
        before(link, Features::FULL, "answered"),
        [of_lan(), other(), options()]
    );
    let one_armed = link.replace("wan0", "lan0");
    assert_eq!(
        before(&one_armed, Features::FULL, "answered"),
        [other(), options()]
    );
    // Without look-ups, all may be.
    let poor = Features {
        fib: false,
        ..Features::FULL
    };
    assert_eq!(before("", poor, "repeated")[0], of_lan());
    assert_eq!(before("", poor, "answered")[0], [Term::Return]);
}

//! Tests of the places of policy rules.

use super::*;

#[test]
fn rules_come_before_others_as_far_as_there_is_a_place() {
    assert_eq!(place_before(None, 2, 100, 14), 100);
    assert_eq!(place_before(Some(98), 2, 100, 14), 96);
    assert_eq!(place_before(Some(16), 2, 100, 14), 14);
    assert_eq!(place_before(Some(9), 2, 100, 14), 14);
    assert_eq!(place_before(Some(4), 2, 5, 14), 2);
    assert_eq!(place_before(Some(1), 2, 1, 14), 1);
}

fn rule(action: RuleAction, attributes: Vec<RuleAttribute>) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.action = action;
    rule.attributes = attributes;
    rule.attributes.push(RuleAttribute::Priority(98));
    rule
}

#[test]
fn only_rules_that_may_divert_pepds_packets_are_ahead() {
    use RuleAttribute::{FwMark, FwMask, Iifname, Oifname};
    let config = pep_core::config::parse("[intercept]\nlan = [\"lan0\"]\n");
    let routing = Routing::new(&config.expect("valid"), &Family::ALL);
    let local = routing.marks.local();
    let is_ahead = |attributes| routing.is_ahead(&rule(RuleAction::ToTable, attributes));
    assert!(is_ahead(vec![]));
    // Answers of servers have pepd's marks, too.
    assert!(is_ahead(vec![Iifname("wan0".into())]));
    assert!(!is_ahead(vec![Oifname("wg0".into())]));
    assert!(!is_ahead(vec![FwMark(0x77)]));
    assert!(is_ahead(vec![FwMark(0x77), FwMask(0xff)]));
    assert!(is_ahead(vec![FwMark(local | 0x77)]));
    assert!(!routing.is_ahead(&rule(RuleAction::Nop, vec![])));
    // `not fwmark 0xca6c`, of wg-quick.
    let mut inverted = rule(RuleAction::ToTable, vec![FwMark(0xca6c)]);
    inverted.header.flags = RuleFlags::Invert;
    assert!(routing.is_ahead(&inverted));
}

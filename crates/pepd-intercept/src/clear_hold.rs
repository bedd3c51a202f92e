//! Two independent holds on packets of sites with `clear = "never"`, which outlive pepd: a table of
//! nft, and policy rules.
//!
//! ```text
//! H    rule  fwmark 0/mask iif lo      goto H+2
//! H+1  rule  fwmark 0/mask from HOSTS  blackhole
//! H+2  rule  fwmark 0/mask             nop
//! ```
//!
//! for IPv4 and IPv6. The table marks packets of these hosts, so the policy rules drop them only
//! while the table is missing: `nft flush ruleset` removes it. The first rule exempts packets of
//! this machine, and reverse look-ups.

use ipnet::IpNet;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use pep_core::config::Config;
use rtnetlink::Error;

use super::{
    InterceptError, cannot,
    filter::FilterError,
    netlink::{Netlink, RouteError},
    nft::{self, Nft, NftError},
    route::{OURS, address_family, all_rules, ignore, priority_of, remove_rule},
    rules::{Counter, Family, Features, Ruleset, hosts_never_in_clear},
};

/// Both holds of a configuration.
#[derive(Debug)]
pub struct ClearHold {
    ruleset: Ruleset,
    policy: Policy,
}

/// State of the holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldState {
    /// True if the table exists.
    pub table: bool,
    /// True if the policy rules exist and come before those of other programs.
    pub policy: bool,
    /// Packets that the table has dropped since its installation.
    pub dropped: u64,
}

impl HoldState {
    /// Returns true if both holds are in place.
    pub fn is_whole(self) -> bool {
        self.table && self.policy
    }
}

impl ClearHold {
    /// Returns the holds of a configuration; `None` if no site has `clear = "never"`.
    pub fn new(config: &Config) -> Option<Self> {
        // IPv6 may be off on `lo` only, where pepd listens, while the kernel forwards it.
        let features = Features {
            ipv6: pepd_sys::sysctl("net/ipv6/conf/all/forwarding").is_some(),
            ..Features::FULL
        };
        Some(Self {
            ruleset: Ruleset::clear(config, features)?,
            policy: Policy::new(config, features.families()),
        })
    }

    /// Installs both, and replaces those of an earlier configuration. No packet passes meanwhile.
    ///
    /// # Errors
    /// When nft is missing or rejects the table, or the kernel rejects a policy rule.
    pub async fn install(&self, netlink: &Netlink) -> Result<(), InterceptError> {
        let text = nft::install_transaction(&self.ruleset);
        apply(&text, "install the table of `clear = \"never\"`").await?;
        // The table comes first: without it the policy rules drop packets of all sites.
        Ok(self.policy.install(netlink).await?)
    }

    /// Returns the state of the holds.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub async fn state(&self, netlink: &Netlink) -> Result<HoldState, InterceptError> {
        let table = nft::table_exists(&self.ruleset.table).map_err(InterceptError::Ask)?;
        let counters = nft::counters(&self.ruleset.table).unwrap_or_default();
        let dropped = counters.get(Counter::NotInClear.name().as_ref());
        Ok(HoldState {
            table,
            policy: self.policy.is_in_place(netlink).await?,
            dropped: dropped.copied().unwrap_or(0),
        })
    }
}

/// Removes both holds of any configuration with this table and these marks.
///
/// # Errors
/// When nft cannot be run, or the kernel does not answer.
pub async fn lift(config: &Config, netlink: &Netlink) -> Result<(), InterceptError> {
    let policy = Policy {
        hosts: Vec::new(),
        ..Policy::new(config, Features::FULL.families())
    };
    // The policy rules go first: without the table they would drop more.
    policy.remove(netlink).await?;
    let table = format!("{}_clear", config.intercept.table);
    if nft::table_exists(&table).unwrap_or(false) {
        let text = nft::remove_transaction(&table);
        apply(&text, "remove the table of `clear = \"never\"`").await?;
    }
    Ok(())
}

async fn apply(transaction: &str, action: &'static str) -> Result<(), InterceptError> {
    let run = async { Nft::find().await?.apply(transaction).await };
    let applied: Result<(), NftError> = run.await;
    applied.map_err(FilterError::from).map_err(cannot(action))
}

/// The policy rules.
#[derive(Debug)]
struct Policy {
    families: &'static [Family],
    hosts: Vec<IpNet>,
    mask: u32,
    /// Priority of the first rule, where no rule of another program comes earlier.
    priority: u32,
}

/// A policy rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Exempts packets of this machine; leads to this priority.
    Skip(u32),
    Drop(IpNet),
    End,
}

impl Part {
    fn is(self, rule: &RuleMessage) -> bool {
        let has = |attribute| rule.attributes.contains(&attribute);
        match self {
            Self::Skip(end) => has(RuleAttribute::Goto(end)),
            Self::Drop(net) => {
                let source = RuleAttribute::Source(net.addr());
                let of_all = net.prefix_len() == 0;
                rule.header.action == RuleAction::Blackhole
                    && rule.header.src_len == net.prefix_len()
                    && (of_all || has(source))
            }
            Self::End => rule.header.action == RuleAction::Nop,
        }
    }
}

impl Policy {
    fn new(config: &Config, families: &'static [Family]) -> Self {
        Self {
            families,
            hosts: hosts_never_in_clear(config),
            mask: config.intercept.marks.mask(),
            priority: config.intercept.rule_priority.saturating_sub(4).max(1),
        }
    }

    /// Returns the rules of a family, from this priority on.
    fn rules(&self, family: Family, first: u32) -> Vec<(u32, Part)> {
        let of_family = |net: &&IpNet| net.addr().is_ipv4() == (family == Family::V4);
        let hosts: Vec<_> = self.hosts.iter().filter(of_family).collect();
        if hosts.is_empty() {
            return Vec::new();
        }
        let drops = hosts.into_iter().map(|net| (first + 1, Part::Drop(*net)));
        let end = [(first + 2, Part::End), (first, Part::Skip(first + 2))];
        end.into_iter().chain(drops).collect()
    }

    /// Returns true for one of these rules, of any configuration. The kernel lists no mark that is
    /// 0.
    fn is_own(&self, rule: &RuleMessage) -> bool {
        let has = |attribute| rule.attributes.contains(&attribute);
        let is_mark = |attribute: &RuleAttribute| matches!(attribute, RuleAttribute::FwMark(_));
        has(OURS) && has(RuleAttribute::FwMask(self.mask)) && !rule.attributes.iter().any(is_mark)
    }

    /// Returns the priority that puts the rules ahead of those of other programs.
    fn first(&self, all: &[RuleMessage]) -> u32 {
        let place = 1..=self.priority + 2;
        let others = all.iter().filter(|rule| !rule.attributes.contains(&OURS));
        let ahead = others.map(priority_of).filter(|at| place.contains(at));
        let first = ahead.min().map(|first| first.saturating_sub(3).max(1));
        first.unwrap_or(self.priority)
    }

    async fn install(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            let all = all_rules(netlink, family).await?;
            let wanted = self.rules(family, self.first(&all));
            for &(priority, part) in &wanted {
                self.add(netlink, family, priority, part).await?;
            }
            for rule in all.into_iter().filter(|rule| self.is_own(rule)) {
                let is_wanted =
                    |(at, part): &(u32, Part)| *at == priority_of(&rule) && part.is(&rule);
                if !wanted.iter().any(is_wanted) {
                    remove_rule(netlink, rule).await?;
                }
            }
        }
        Ok(())
    }

    async fn add(
        &self,
        netlink: &Netlink,
        family: Family,
        priority: u32,
        part: Part,
    ) -> Result<(), RouteError> {
        let request = netlink.handle.rule().add().priority(priority).fw_mark(0);
        let mut request = match part {
            Part::Skip(_) => request.input_interface("lo").action(RuleAction::Goto),
            Part::Drop(_) => request.action(RuleAction::Blackhole),
            Part::End => request.action(RuleAction::Nop),
        };
        let message = request.message_mut();
        message.header.family = address_family(family);
        message
            .attributes
            .extend([RuleAttribute::FwMask(self.mask), OURS]);
        match part {
            Part::Skip(end) => message.attributes.push(RuleAttribute::Goto(end)),
            Part::Drop(net) => {
                message.header.src_len = net.prefix_len();
                message.attributes.push(RuleAttribute::Source(net.addr()));
            }
            Part::End => {}
        }
        let added = request.execute().await;
        let added: Result<(), Error> = added.or_else(|err| ignore(err, &[libc::EEXIST]));
        let what = "cannot add a policy rule of `clear = \"never\"`";
        added.map_err(|err| RouteError::new(what, err))
    }

    async fn is_in_place(&self, netlink: &Netlink) -> Result<bool, RouteError> {
        for &family in self.families {
            let all = all_rules(netlink, family).await?;
            let own: Vec<_> = all.iter().filter(|rule| self.is_own(rule)).collect();
            let first = own.iter().map(|rule| priority_of(rule)).min();
            let wanted = self.rules(family, first.unwrap_or(self.priority));
            let is_there = |(at, part): &(u32, Part)| {
                own.iter()
                    .any(|rule| *at == priority_of(rule) && part.is(rule))
            };
            let place = 1..=first.unwrap_or(0) + 2;
            let mut others = all.iter().filter(|rule| !rule.attributes.contains(&OURS));
            let is_behind = !wanted.is_empty()
                && first != Some(1)
                && others.any(|rule| place.contains(&priority_of(rule)));
            if is_behind || !wanted.iter().all(is_there) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn remove(&self, netlink: &Netlink) -> Result<(), RouteError> {
        for &family in self.families {
            for rule in all_rules(netlink, family).await? {
                if self.is_own(&rule) {
                    remove_rule(netlink, rule).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::CLEAR_HEAD as HEAD;

    const SITE: &str = r#"
        [[site]]
        name = "secret"
        mode = "tunnel"
        peer = "hub"
        clear = "never"
        match = { src = ["10.0.0.0/25", "10.0.0.128/25", "fd00::/8"] }
    "#;

    fn policy(priority: u32) -> Policy {
        let head = HEAD.replace(
            "[intercept]",
            &format!("[intercept]\nrule_priority = {priority}"),
        );
        let config = pep_core::config::parse(&format!("{head}{SITE}")).expect("valid");
        Policy::new(&config, &Family::ALL)
    }

    fn rule_of_another(priority: u32) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.attributes.push(RuleAttribute::Priority(priority));
        rule
    }

    #[test]
    fn hosts_are_dropped_between_the_exemption_and_its_end() {
        let net = |text: &str| Part::Drop(text.parse().expect("a prefix"));
        let rules = |family| policy(100).rules(family, 96);
        let around = |drop| vec![(98, Part::End), (96, Part::Skip(98)), (97, drop)];
        assert_eq!(rules(Family::V4), around(net("10.0.0.0/24")));
        assert_eq!(rules(Family::V6), around(net("fd00::/8")));
    }

    #[test]
    fn the_rules_come_before_those_of_others() {
        let usual = policy(100);
        assert_eq!(usual.first(&[]), 96);
        assert_eq!(usual.first(&[rule_of_another(32_766)]), 96);
        assert_eq!(usual.first(&[rule_of_another(98)]), 95);
        assert_eq!(usual.first(&[rule_of_another(50), rule_of_another(60)]), 47);
        assert_eq!(usual.first(&[rule_of_another(2)]), 1);
        assert_eq!(policy(1).first(&[]), 1);
    }
}

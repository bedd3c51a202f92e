//! From the configuration of a site to its chain.

use boosters::{
    chain::Chain,
    fec::Backend,
    settings::{self, Boosted, Settings},
};
use pep_core::{
    config::{Boost, FecCode, Rule, When},
    site::PacketPolicy,
};
use units::{Rate, Ratio};

/// Builds the chain of a site whose path has this rate.
pub(crate) fn chain(policy: &PacketPolicy, rate: Option<Rate>, seed: u64) -> Chain {
    settings::chain(&Settings {
        queue: usize::try_from(policy.queue_bytes(rate)).unwrap_or(usize::MAX),
        deadline: policy.deadline,
        seed,
        ..boosters(&policy.boost)
    })
}

/// Returns the maximum of bytes that the boosters add to a packet.
pub(super) fn overhead(boost: &Boost) -> usize {
    settings::overhead(&boosters(boost))
}

/// Returns the implementation that decodes the blocks of a peer, whose site each packet comes from
/// being unknown: the one that any of the local sites names, else the native one.
pub(super) fn decoder<'a>(mut boosts: impl Iterator<Item = &'a Boost>) -> Backend {
    let code = boosts.find_map(|boost| match boost.fec?.code {
        FecCode::Native => None,
        code @ FecCode::ReedSolomonErasure => Some(code),
    });
    backend(code.unwrap_or(FecCode::Native))
}

fn backend(code: FecCode) -> Backend {
    match code {
        FecCode::Native => Backend::default(),
        FecCode::ReedSolomonErasure => Backend::Reference,
    }
}

pub(super) fn boosters(boost: &Boost) -> Settings {
    Settings {
        fec: boost.fec.as_ref().map(fec),
        arq: boost.arq.as_ref().map(arq),
        ack_reconstruction: boost.ack_reconstruction.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: boosters::ack_reconstruction::Config {
                spacing_max: asked.spacing_max,
                ..Default::default()
            },
        }),
        jitter: boost.jitter.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: boosters::jitter::Config { delay: asked.delay },
        }),
        compress: boost.compress.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: boosters::compress::Config {
                level: asked.level.into(),
                headers: asked.headers,
                payload: asked.payload,
                ..Default::default()
            },
        }),
        checksum: boost.checksum.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: (),
        }),
        data_filter: boost.data_filter.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: (),
        }),
        snoop: boost.snoop.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: boosters::snoop::Config {
                cache: usize::try_from(asked.cache.bytes()).unwrap_or(usize::MAX),
                tries: asked.tries,
                ..Default::default()
            },
        }),
        divacks: boost.divacks.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: boosters::divacks::Config {
                mode: asked.mode,
                parts: asked.parts,
                max_count: asked.max_count,
                ..Default::default()
            },
        }),
        ack_filter: boost.ack_filter.as_ref().map(|asked| Boosted {
            rule: asked.rule,
            config: boosters::ack_filter::Config {
                low: asked.low,
                high: asked.high,
                ..Default::default()
            },
        }),
        congestion: boost.congestion.as_ref().map(congestion),
        ..Settings::default()
    }
}

/// The queue threshold is evaluated by the booster itself, per packet.
fn congestion(asked: &pep_core::config::Congestion) -> Boosted<boosters::congestion::Config> {
    use boosters::congestion::Config;
    let default = Config::default();
    let rule = asked.rule;
    let alone = rule.asymmetry_above.is_none() && rule.loss_above.is_none();
    Boosted {
        rule: Rule {
            when: match rule.when {
                When::Rule if alone => When::Always,
                when => when,
            },
            queue_above: None,
            ..rule
        },
        config: Config {
            target: asked.rule.queue_above.unwrap_or(default.target),
            mark: asked.mark,
            ..default
        },
    }
}

fn fec(asked: &pep_core::config::Fec) -> Boosted<boosters::fec::Config> {
    use boosters::fec::{Config, Scheme};
    use pep_core::config::FecScheme;
    Boosted {
        rule: beside_loss(asked.rule),
        config: Config {
            scheme: match asked.scheme {
                FecScheme::Window => Scheme::Window {
                    window: asked.window,
                },
                FecScheme::Block => Scheme::Block {
                    k: asked.block,
                    depth: asked.depth,
                },
            },
            code: backend(asked.code),
            overhead_max: asked.overhead_max.get(),
            target: asked.target.get(),
            threshold: asked.rule.loss_above.map_or(1e-5, Ratio::get),
            ..Config::default()
        },
    }
}

/// FEC overhead has a threshold of its own that accounts for the confidence of the loss estimate.
/// Without other conditions it decides alone.
fn beside_loss(rule: Rule) -> Rule {
    let alone = rule.asymmetry_above.is_none() && rule.queue_above.is_none();
    Rule {
        when: match rule.when {
            When::Rule if alone => When::Always,
            when => when,
        },
        loss_above: None,
        ..rule
    }
}

fn arq(asked: &pep_core::config::Arq) -> Boosted<boosters::arq::Config> {
    Boosted {
        rule: asked.rule,
        config: boosters::arq::Config {
            tries: asked.tries,
            order: asked.order,
            cache: usize::try_from(asked.cache.bytes()).unwrap_or(usize::MAX),
            wait: asked.wait,
            seed: 0,
        },
    }
}

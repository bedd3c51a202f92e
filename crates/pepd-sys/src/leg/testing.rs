//! A site for tests.

use std::{sync::Arc, time::Duration};

use pep_core::{
    config::{Keepalive, Timeouts},
    relay::Side,
    site::{Buffers, Class, Close, DscpPolicy, KeepWhen, SiteId, Source, SynHandling, WhileDown},
};

use super::{Congestion, LegOptions, SiteRuntime};

pub(super) fn options() -> LegOptions {
    LegOptions {
        mark: 0,
        congestion: Congestion::System,
        nodelay: true,
        buffers: Buffers::default(),
        mss: None,
        notsent_lowat: Some(1 << 17),
        terms: None,
        pacing: None,
        user_timeout: Some(Duration::from_secs(900)),
        rto_max: Some(Duration::from_secs(2)),
        rto_min: None,
        connect: Duration::from_secs(130),
        keepalive: Some(Keepalive {
            idle: Duration::from_secs(300),
            interval: Duration::from_secs(30),
            count: 10,
        }),
    }
}

/// Returns a site that connects from pepd's own address.
pub fn site() -> SiteRuntime {
    SiteRuntime {
        keep: KeepWhen::Outage,
        close: Close::Confirmed,
        hold: Duration::from_secs(900),
        id: SiteId(0),
        name: "test".to_owned(),
        port: 0,
        backlog: 16,
        client: options(),
        server: options(),
        source: Source::Self_,
        syn: SynHandling::Spoof,
        dscp: DscpPolicy::Keep,
        timeouts: Timeouts::default(),
        link_side: Side::Server,
        compress: false,
        while_down: WhileDown::Custody,
        clamps: Arc::default(),
        beside: None,
        is_beside: false,
        class: Class::Normal,
        share: [None; 2],
        site_counters: Arc::default(),
    }
}

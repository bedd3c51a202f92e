//! Flows that the kernel is to forward: their site's peer or the link is away, or an operator has switched it off.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use pep_core::site::SiteId;
use pepd_intercept::LeftAlone;
use pepd_relay::{flow::FlowContext, outage::LinkWatch};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::switches::{Off, Switches};

/// Before rules that could not be changed are tried again: a descriptor for nft may be there then.
const AGAIN: Duration = Duration::from_secs(1);

/// Who knows of such sites.
pub(super) struct Bypassed {
    /// Where there are tunnels.
    tunnels: Option<watch::Receiver<BTreeSet<SiteId>>>,
    link: watch::Receiver<bool>,
    /// True while new flows of IPv6 pass.
    silent: watch::Receiver<bool>,
    outage: Arc<LinkWatch>,
    off: watch::Receiver<Off>,
    switches: Arc<Switches>,
    /// The change of switches that is under way, or was not possible.
    changes: u64,
    /// When what was not possible is tried again.
    again: Option<Instant>,
}

impl Bypassed {
    pub(super) fn new(
        tunnels: Option<watch::Receiver<BTreeSet<SiteId>>>,
        context: &FlowContext,
        switches: &Arc<Switches>,
    ) -> Self {
        let outage = &context.outage;
        let mut link = outage.away();
        // Whatever it was at the start.
        link.mark_changed();
        Self {
            tunnels,
            link,
            silent: context.silence.passes(),
            outage: Arc::clone(outage),
            off: switches.off(),
            switches: Arc::clone(switches),
            changes: 0,
            again: None,
        }
    }

    /// When they have changed, or could not be told to the kernel before. May be dropped at any time.
    pub(super) async fn next(&mut self) -> LeftAlone {
        let tunnels = async {
            if let Some(tunnels) = &mut self.tunnels
                && tunnels.changed().await.is_ok()
            {
                return;
            }
            std::future::pending::<()>().await;
        };
        let again = async {
            match self.again {
                Some(again) => sleep_until(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tunnels => {}
            // The senders are in the context and in `switches`.
            _ = self.link.changed() => {}
            _ = self.silent.changed() => log_silence(*self.silent.borrow()),
            _ = self.off.changed() => {}
            () = again => {}
        }
        let mut sites = self.outage.bypassed();
        if let Some(tunnels) = &mut self.tunnels {
            sites.extend(tunnels.borrow_and_update().iter());
        }
        let off = self.off.borrow_and_update();
        sites.extend(&off.sites);
        self.changes = off.changes;
        LeftAlone {
            sites,
            is_link_down: *self.link.borrow(),
            is_v6_silent: *self.silent.borrow(),
        }
    }

    /// The kernel was told what was [next](Self::next), or could not be.
    pub(super) fn are(&mut self, told: bool) {
        self.again = (!told).then(|| Instant::now() + AGAIN);
        if told {
            self.switches.announce(self.changes);
        }
    }
}

fn log_silence(passes: bool) {
    if passes {
        tracing::warn!(
            "no server answers over IPv6: new connections over it pass unaccelerated until one does, such that hosts try \
             IPv4 (sites of mode split that answer hosts at once)"
        );
    } else {
        tracing::info!("servers answer over IPv6: new connections over it are accelerated again");
    }
}

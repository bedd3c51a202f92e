//! Flows that the kernel forwards: their site's peer or the link is down, or an operator has
//! switched the site off.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use pep_core::site::SiteId;
use pepd_intercept::LeftAlone;
use pepd_relay::{flow::FlowContext, outage::LinkWatch};
use pepd_tunnel::peers::{Refused, Statuses};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::switches::{Off, Switches};

/// Pause before rules that could not be changed are retried: nft may get a descriptor then.
const AGAIN: Duration = Duration::from_secs(1);

/// Sources of bypassed sites.
pub(super) struct Bypassed {
    /// Sites bypassed by tunnels, if any exist.
    tunnels: Option<watch::Receiver<BTreeSet<SiteId>>>,
    /// New flows that hosts are to open to another address.
    refused: Option<watch::Receiver<Refused>>,
    link: watch::Receiver<bool>,
    /// True while new flows of IPv6 pass.
    silent: watch::Receiver<bool>,
    outage: Arc<LinkWatch>,
    off: watch::Receiver<Off>,
    switches: Arc<Switches>,
    /// Change of the switches that is in progress, or failed.
    changes: u64,
    /// Time of the next retry.
    again: Option<Instant>,
}

impl Bypassed {
    pub(super) fn new(
        tunnels: Option<&Statuses>,
        context: &FlowContext,
        switches: &Arc<Switches>,
    ) -> Self {
        let outage = &context.outage;
        let mut link = outage.down();
        // Regardless of the state at the start.
        link.mark_changed();
        Self {
            tunnels: tunnels.map(Statuses::bypassed),
            refused: tunnels.map(Statuses::refused),
            link,
            silent: context.silence.passes(),
            outage: Arc::clone(outage),
            off: switches.off(),
            switches: Arc::clone(switches),
            changes: 0,
            again: None,
        }
    }

    /// Waits until the bypassed flows have changed, or a failed update is due. Cancel-safe.
    pub(super) async fn next(&mut self) -> LeftAlone {
        let tunnels = async {
            if let Some(tunnels) = &mut self.tunnels
                && tunnels.changed().await.is_ok()
            {
                return;
            }
            std::future::pending::<()>().await;
        };
        let refused = async {
            if let Some(refused) = &mut self.refused
                && refused.changed().await.is_ok()
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
            () = refused => {}
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
        let refused = self.refused.as_mut();
        let mut unreached =
            refused.map_or_else(Refused::new, |refused| refused.borrow_and_update().clone());
        unreached.retain(|site, _| !sites.contains(site));
        LeftAlone {
            sites,
            unreached,
            is_link_down: *self.link.borrow(),
            is_v6_silent: *self.silent.borrow(),
        }
    }

    /// Records the result of the update with [next](Self::next).
    pub(super) fn are(&mut self, reported: bool) {
        self.again = (!reported).then(|| Instant::now() + AGAIN);
        if reported {
            self.switches.announce(self.changes);
        }
    }
}

fn log_silence(passes: bool) {
    if passes {
        tracing::warn!(
            "no server answers over IPv6: new IPv6 connections pass unaccelerated, so that hosts can use IPv4; \
             check the IPv6 route"
        );
    } else {
        tracing::info!("servers answer over IPv6: new connections over it are accelerated again");
    }
}

//! Subscriptions to the end of flows. Without a subscriber, the end of a flow costs one load.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pep_core::{
    arena::{Identity, Kind, name_hash},
    stats::EndReason,
};
use tokio::sync::oneshot;

use super::{FlowEnd, FlowInfo};

/// End of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// End reason.
    pub reason: EndReason,
    /// Bytes delivered up and down by this process.
    pub bytes: [u64; 2],
    /// Bytes taken up and down that were not delivered.
    pub undelivered: [u64; 2],
    /// Duration of the flow in this process.
    pub duration: Duration,
    /// Error of a leg, if one ended the flow.
    pub error: Option<String>,
}

/// Key of a watched flow: hosts of two peers may have the same addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    client: SocketAddr,
    destination: SocketAddr,
    /// [`name_hash`] of the peer that sent the flow; 0 for a flow of a local host.
    from: u64,
}

impl From<&Identity> for Watched {
    fn from(identity: &Identity) -> Self {
        Self {
            client: identity.client,
            destination: identity.destination,
            from: match identity.kind {
                Kind::Far => identity.peer,
                Kind::Split | Kind::Near => 0,
            },
        }
    }
}

impl From<&FlowInfo> for Watched {
    fn from(ends: &FlowInfo) -> Self {
        Self {
            client: ends.client,
            destination: ends.destination,
            from: ends.peer.as_deref().map_or(0, name_hash),
        }
    }
}

/// All subscriptions to the end of flows. The caller of [`watch`](Self::watch) bounds their number.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Number of entries in `waiting`.
    count: AtomicUsize,
    waiting: Mutex<Vec<(Watched, oneshot::Sender<Ended>)>>,
}

/// One subscription, ended by dropping it.
#[derive(Debug)]
pub struct Watch {
    watchers: Arc<Watchers>,
    ended: oneshot::Receiver<Ended>,
}

impl Watchers {
    /// Subscribes to the end of a flow.
    pub fn watch(self: &Arc<Self>, watched: Watched) -> Watch {
        let (tell, ended) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.push((watched, tell));
        self.count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        Watch {
            watchers: Arc::clone(self),
            ended,
        }
    }

    pub(super) fn notify(&self, ends: &FlowInfo, end: &FlowEnd<'_>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let flow = Watched::from(ends);
        let mut waiting = self.waiting.lock();
        let (reported, left) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition(|(watched, _)| *watched == flow);
        *waiting = left;
        self.count.store(waiting.len(), Ordering::Relaxed);
        drop(waiting);
        let reported: Vec<(Watched, oneshot::Sender<Ended>)> = reported;
        for (_, tell) in reported {
            // A subscriber that has gone misses nothing.
            let _ = tell.send(end.into());
        }
    }
}

impl Watch {
    /// Returns when the flow has ended; `None` if its end will not be reported.
    pub async fn ended(&mut self) -> Option<Ended> {
        (&mut self.ended).await.ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.close();
        let mut waiting = self.watchers.waiting.lock();
        waiting.retain(|(_, tell)| !tell.is_closed());
        self.watchers.count.store(waiting.len(), Ordering::Relaxed);
    }
}

impl From<&FlowEnd<'_>> for Ended {
    fn from(end: &FlowEnd<'_>) -> Self {
        Self {
            reason: end.reason,
            bytes: [end.up, end.down],
            undelivered: [end.up_undelivered, end.down_undelivered],
            duration: end.duration,
            error: end.error.map(ToString::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn ends(client: &str, peer: Option<&str>) -> FlowInfo {
        FlowInfo {
            client: client.parse().unwrap(),
            destination: "198.51.100.1:80".parse().unwrap(),
            site: Arc::new(pepd_sys::leg::testing::site()),
            peer: peer.map(Into::into),
        }
    }

    #[tokio::test]
    async fn only_watchers_of_a_flow_are_notified_of_its_end() {
        let watchers = Arc::new(Watchers::default());
        let (watched, same_elsewhere) = (ends("192.0.2.1:1", None), ends("192.0.2.1:1", Some("a")));
        let other = ends("192.0.2.1:2", None);
        let mut first = watchers.watch(Watched::from(&watched));
        let mut second = watchers.watch(Watched::from(&watched));
        let mut of_peer = watchers.watch(Watched::from(&same_elsewhere));
        let failure = io::Error::other("cut");
        let end = FlowEnd {
            reason: EndReason::ServerReset,
            up: 7,
            error: Some(&failure),
            ..FlowEnd::default()
        };
        watchers.notify(&other, &end);
        assert_eq!(watchers.count.load(Ordering::Relaxed), 3);
        watchers.notify(&watched, &end);
        for watch in [&mut first, &mut second] {
            let ended = watch.ended().await.expect("a report");
            assert_eq!(
                (ended.reason, ended.bytes),
                (EndReason::ServerReset, [7, 0])
            );
            assert_eq!(ended.error.as_deref(), Some("cut"));
        }
        assert_eq!(watchers.count.load(Ordering::Relaxed), 1);
        assert!(of_peer.ended.try_recv().is_err(), "report of another flow");
        drop(of_peer);
        assert_eq!(watchers.count.load(Ordering::Relaxed), 0);
    }
}

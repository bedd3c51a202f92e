//! Destinations of flows whose servers have not answered for a while.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Within this time nearly all servers answer, or their side says why not; only then is it worth
/// waiting for other news of them, too.
pub const PROMPT: Duration = Duration::from_millis(200);

/// Destinations of flows whose servers have not answered for a while, and who waits for news of
/// them. Whoever is answered soon, as nearly all are, never comes here.
#[derive(Debug, Default)]
pub struct Unanswered {
    /// Nothing is ever sent: a destination has failed when its sender is gone.
    waiting: Mutex<HashMap<IpAddr, watch::Sender<()>>>,
}

/// One flow's wait; it ends when this is dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    all: &'a Unanswered,
    destination: IpAddr,
    receiver: Option<watch::Receiver<()>>,
}

impl Unanswered {
    /// Begins to wait for news of a destination.
    pub fn wait(&self, destination: IpAddr) -> Waiting<'_> {
        let mut waiting = self.waiting.lock();
        let sender = waiting.entry(destination).or_default();
        Waiting {
            all: self,
            destination,
            receiver: Some(sender.subscribe()),
        }
    }

    /// Destinations that somebody waits for.
    pub fn destinations(&self) -> BTreeSet<IpAddr> {
        self.waiting.lock().keys().copied().collect()
    }

    /// Tells all who wait that the destination cannot be reached.
    pub fn fail(&self, destination: IpAddr) {
        self.waiting.lock().remove(&destination);
    }
}

impl Waiting<'_> {
    /// Ends when the destination is known not to be reachable.
    pub async fn failed(&mut self) {
        if let Some(receiver) = &mut self.receiver {
            while receiver.changed().await.is_ok() {}
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.receiver = None;
        let mut waiting = self.all.waiting.lock();
        let sender = waiting.get(&self.destination);
        if sender.is_some_and(|sender| sender.receiver_count() == 0) {
            waiting.remove(&self.destination);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn all_who_wait_for_a_destination_are_told() {
        let all = Unanswered::default();
        let (mut one, mut two, mut other) = (all.wait(HERE), all.wait(HERE), all.wait(THERE));
        all.fail(HERE);
        assert_eq!(one.failed().now_or_never(), Some(()));
        assert_eq!(two.failed().now_or_never(), Some(()));
        assert_eq!(other.failed().now_or_never(), None);
        assert_eq!(all.destinations(), [THERE].into());
    }

    #[test]
    fn who_comes_after_a_failure_waits_anew() {
        let all = Unanswered::default();
        let old = all.wait(HERE);
        all.fail(HERE);
        let mut new = all.wait(HERE);
        drop(old);
        assert_eq!(new.failed().now_or_never(), None);
        all.fail(HERE);
        assert_eq!(new.failed().now_or_never(), Some(()));
    }

    #[test]
    fn nothing_is_kept_once_nobody_waits() {
        let all = Unanswered::default();
        let (one, two) = (all.wait(HERE), all.wait(HERE));
        drop(one);
        assert_eq!(all.destinations(), [HERE].into());
        drop(two);
        assert!(all.waiting.lock().is_empty());
    }
}

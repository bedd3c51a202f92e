//! Destinations of flows whose servers have not answered for a while.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The time within which nearly all servers answer, or are reported unreachable; waiters subscribe
/// to other notices only after it.
pub const PROMPT: Duration = Duration::from_millis(200);

/// Destinations of flows whose servers have not answered for a while, and the flows that wait for
/// them. Flows with a prompt answer, nearly all, are never in it.
#[derive(Debug, Default)]
pub struct Unanswered {
    /// No value is ever sent: a destination has failed when its sender is dropped.
    waiting: Mutex<HashMap<IpAddr, watch::Sender<()>>>,
}

/// The wait of one flow; ends on drop.
#[derive(Debug)]
pub struct Waiting<'a> {
    all: &'a Unanswered,
    destination: IpAddr,
    receiver: Option<watch::Receiver<()>>,
}

impl Unanswered {
    /// Starts a wait for news of a destination.
    pub fn wait(&self, destination: IpAddr) -> Waiting<'_> {
        let mut waiting = self.waiting.lock();
        let sender = waiting.entry(destination).or_default();
        Waiting {
            all: self,
            destination,
            receiver: Some(sender.subscribe()),
        }
    }

    /// Returns the destinations that flows wait for.
    pub fn destinations(&self) -> BTreeSet<IpAddr> {
        self.waiting.lock().keys().copied().collect()
    }

    /// Notifies all waiters that the destination is unreachable.
    pub fn fail(&self, destination: IpAddr) {
        self.waiting.lock().remove(&destination);
    }
}

impl Waiting<'_> {
    /// Returns when the destination is known to be unreachable.
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
    fn all_waiters_of_a_destination_are_notified() {
        let all = Unanswered::default();
        let (mut one, mut two, mut other) = (all.wait(HERE), all.wait(HERE), all.wait(THERE));
        all.fail(HERE);
        assert_eq!(one.failed().now_or_never(), Some(()));
        assert_eq!(two.failed().now_or_never(), Some(()));
        assert_eq!(other.failed().now_or_never(), None);
        assert_eq!(all.destinations(), [THERE].into());
    }

    #[test]
    fn a_waiter_after_a_failure_waits_for_the_next() {
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
    fn nothing_is_kept_without_waiters() {
        let all = Unanswered::default();
        let (one, two) = (all.wait(HERE), all.wait(HERE));
        drop(one);
        assert_eq!(all.destinations(), [HERE].into());
        drop(two);
        assert!(all.waiting.lock().is_empty());
    }
}

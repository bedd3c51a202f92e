//! Flows of one thread run in [rounds](pep_core::rounds): by host, or by peer of a tunnel. A system
//! call for a byte costs as much as one for many, so without that a host with many flows would take
//! the thread's time from all others.

use std::{
    cell::RefCell,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use pep_core::{
    parties::Party,
    rounds::{Place, Rounds},
};
use tokio::{sync::Notify, task::yield_now, time::Instant};

thread_local! {
    static ROUNDS: RefCell<Rounds<Party, Waker>> = RefCell::default();
    /// Notified when the first flow waits for a round.
    static WAITS: Arc<Notify> = Arc::default();
}

/// Begins rounds for as long as the thread runs. Flows wait for ever without.
pub async fn run() {
    let waits = WAITS.with(Arc::clone);
    loop {
        waits.notified().await;
        while ROUNDS.with_borrow(Rounds::has_waiting) {
            // After all that is woken now, and after a look at all sockets.
            yield_now().await;
            let mut woken = Vec::new();
            ROUNDS.with_borrow_mut(|rounds| rounds.begin(|waker| woken.push(waker.clone())));
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// A flow that runs in its party's share of the time. To be awaited as a task of its own.
pub struct InRounds<F> {
    party: Party,
    place: Place,
    flow: Pin<Box<F>>,
}

/// Returns the flow with its share. [`run`] must be a task of the same thread.
pub fn in_rounds<F: Future>(party: Party, flow: F) -> InRounds<F> {
    InRounds {
        party,
        place: None,
        flow: Box::pin(flow),
    }
}

impl<F: Future> Future for InRounds<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { party, place, flow } = &mut *self;
        let may_run = ROUNDS.with_borrow_mut(|rounds| {
            let begins = !rounds.has_waiting();
            let may_run = rounds.enter(*party, place, || cx.waker().clone());
            if begins && !may_run {
                WAITS.with(|waits| waits.notify_one());
            }
            may_run
        });
        if !may_run {
            return Poll::Pending;
        }
        let began = Instant::now();
        let polled = flow.as_mut().poll(cx);
        let cost = began.elapsed();
        wake(|rounds| rounds.charge(*party, cost).cloned());
        polled
    }
}

impl<F> Drop for InRounds<F> {
    fn drop(&mut self) {
        if self.place.is_some() {
            let Self { party, place, .. } = self;
            wake(|rounds| rounds.leave(*party, place).cloned());
        }
    }
}

impl<F> fmt::Debug for InRounds<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InRounds")
            .field("party", &self.party)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

fn wake(next: impl FnOnce(&mut Rounds<Party, Waker>) -> Option<Waker>) {
    // At the end of the thread its state may be gone before its tasks.
    let next = ROUNDS.try_with(|rounds| next(&mut rounds.borrow_mut()));
    if let Ok(Some(waker)) = next {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        rc::Rc,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
        time::Duration,
    };

    use tokio::task::{JoinHandle, LocalSet, spawn_local};

    use super::*;

    fn host(number: u32) -> Party {
        Party::host(Ipv4Addr::from(number).into())
    }

    /// A task that always has work, in pieces of that length.
    async fn busy(piece: Duration, runs: Rc<AtomicU32>) {
        loop {
            let until = std::time::Instant::now() + piece;
            while std::time::Instant::now() < until {}
            runs.fetch_add(1, Relaxed);
            yield_now().await;
        }
    }

    /// Runs a test on a thread that begins rounds.
    fn with_rounds(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            spawn_local(run());
            test.await;
        });
    }

    #[test]
    fn a_host_with_hundreds_of_busy_flows_leaves_others_their_share() {
        with_rounds(async {
            let (many, one) = (Rc::default(), Rc::new(AtomicU32::new(0)));
            for _ in 0..300 {
                let flow = busy(Duration::from_micros(50), Rc::clone(&many));
                spawn_local(in_rounds(host(1), flow));
            }
            let flow = busy(Duration::from_micros(50), Rc::clone(&one));
            spawn_local(in_rounds(host(2), flow));
            // One of 301 tasks would have had one run.
            while many.load(Relaxed) < 1000 {
                yield_now().await;
            }
            let (many, one) = (many.load(Relaxed), one.load(Relaxed));
            assert!(one * 8 > many, "{one} of {many}");
        });
    }

    #[test]
    fn flows_that_are_dropped_while_they_wait_leave_no_trace() {
        with_rounds(async {
            let runs = Rc::new(AtomicU32::new(0));
            let flows = (0..50).map(|_| {
                let flow = busy(Duration::from_millis(1), Rc::clone(&runs));
                spawn_local(in_rounds(host(1), flow))
            });
            let flows: Vec<_> = flows.collect();
            while runs.load(Relaxed) < 5 {
                yield_now().await;
            }
            flows.iter().for_each(JoinHandle::abort);
            for flow in flows {
                let _ = flow.await;
            }
            assert!(!ROUNDS.with_borrow(Rounds::has_waiting));
        });
    }
}

//! Threads that carry flows: one per CPU, each with its own event loop.
//!
//! A flow stays with the thread that accepted it. Its packets then wake that thread, or none if it
//! is already running; a work-stealing pool would wake another thread for each of them.

use std::{io, sync::Arc, thread::JoinHandle};

use pepd_relay::flow::{self, FlowContext, Resumed, revive, rounds};
use pepd_sys::threads::{self, IdleLoop};
use tokio::sync::watch;

use crate::accept::{Acceptor, Listener};

/// Running workers. They stop when this is dropped; [`stop`](Self::stop) also waits for them.
#[derive(Debug)]
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    stop: watch::Sender<()>,
}

impl Workers {
    /// Starts [as many threads](threads::count) as required.
    ///
    /// # Errors
    /// When a thread or its event loop cannot be created.
    pub fn threads() -> io::Result<Vec<IdleLoop>> {
        let names = (0..threads::count()).map(|number| format!("{}{number}", threads::NAME));
        names.map(IdleLoop::new).collect()
    }

    /// Assigns each set of listeners to a thread, and distributes `resumed` flows over the threads.
    ///
    /// # Errors
    /// When the registration of a listener fails.
    pub fn start(
        context: &Arc<FlowContext>,
        threads: Vec<IdleLoop>,
        listeners: Vec<Vec<Listener>>,
        resumed: Vec<Resumed>,
    ) -> io::Result<Self> {
        let mut lots: Vec<_> = listeners.into_iter().map(|lot| (lot, Vec::new())).collect();
        let count = lots.len();
        for (index, flow) in resumed.into_iter().enumerate() {
            lots[index % count].1.push(flow);
        }
        let stop = watch::Sender::new(());
        let mut workers = Self {
            threads: Vec::new(),
            stop,
        };
        for (number, (thread, lot)) in threads.into_iter().zip(lots).enumerate() {
            let stopped = workers.stop.subscribe();
            let thread = start_one((number, thread), context, lot, stopped)?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Ends all threads. Flows that are still open are reset.
    pub fn stop(self) {
        drop(self.stop);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!(
                    "a worker thread had panicked: its flows were reset; a bug: please report"
                );
            }
        }
    }
}

fn start_one(
    (number, thread): (usize, IdleLoop),
    context: &Arc<FlowContext>,
    (listeners, resumed): (Vec<Listener>, Vec<Resumed>),
    mut stopped: watch::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let entered = thread.events().enter();
    let acceptors = listeners
        .into_iter()
        .map(|listener| Acceptor::new(Arc::clone(context), listener))
        .collect::<io::Result<Vec<_>>>()?;
    drop(entered);
    let context = Arc::clone(context);
    let beat = context.heartbeat.of_thread();
    Ok(thread.begin(move |runtime| {
        runtime.spawn(beat.tick());
        runtime.spawn(revive::run(Arc::clone(&context), number));
        runtime.spawn(rounds::run());
        for flow in resumed {
            runtime.spawn(flow::resume(Arc::clone(&context), flow));
        }
        for acceptor in acceptors {
            runtime.spawn(acceptor.run());
        }
        // No value is ever sent: this ends when the sender is dropped.
        runtime.block_on(async { while stopped.changed().await.is_ok() {} });
    }))
}

//! Time that a turn spends on received datagrams, and datagrams that wait for their sender's turn.
//!
//! ```text
//!   sockets, connections ---------------------------> endpoint   time suffices: no copy, no queue
//!   sockets, connections --> queue of each sender --> endpoint   overloaded: turns of equal time
//! ```
//!
//! A turn that takes longer than its budget while more has arrived shows an overload. Until all
//! queues and sockets are empty, datagrams then wait by their presumed sender, and senders get
//! equal CPU time. So a peer whose datagrams are many or expensive delays and loses its own only.
//!
//! During an overload a turn first reads ahead: what waits in a socket waits behind the datagrams
//! of all, and the kernel drops whoever comes last. A turn is the time from one poll of the driver
//! to the next; the connections' tasks between them have a part of it each.

use std::{net::IpAddr, time::Duration};

use pep_core::{
    budget::Share,
    fair::{Bounds, FairQueues},
    parties::Party,
};
use tunnel::{
    ecn::Ecn,
    endpoint::{Carrier, PeerId, Remote},
};

use super::{Core, Shared};
use crate::shards::Datagram;

/// Time that a turn spends on received datagrams before it sends, and other tasks run.
const BUDGET: Duration = Duration::from_millis(4);
/// Time that a turn of an overload spends on reading ahead, and on what waits. Each datagram of a
/// flow waits for several turns, so these are shorter.
const READ_AHEAD: Duration = Duration::from_millis(1);
const WORK: Duration = Duration::from_millis(2);
/// Datagrams handled between two readings of the clock.
const CHECK_EVERY: u32 = 32;
/// Maximum of waiting bytes: the receive buffer of a socket, and the divisor of `limits.memory`.
const WAITING_MAX: u64 = 8 << 20;
const WAITING_PART: u64 = 32;
/// Divisor for one sender: 1 MiB are 80 ms at 100 Mbit/s.
const SENDER_PART: u64 = 8;
/// Memory of a waiting datagram in addition to its bytes.
const OVERHEAD: u64 = 128;
/// Place of handshakes and of all who are not known as peers; that of a peer is its index plus 1.
const STRANGERS: usize = 0;

/// State of the present turn, and datagrams that wait.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Time that the parts of the turn that have ended took.
    spent: Duration,
    /// Beginning of the present part; `None` until its first reading of the clock.
    begun: Option<Duration>,
    /// Datagrams handled since the last reading.
    unchecked: u32,
    /// The sockets may have more.
    unread: bool,
    waiting: Option<Waiting>,
    /// Dropped datagrams that have not been counted, and whose the latest was.
    shed: (u64, usize),
}

#[derive(Debug)]
struct Waiting {
    /// Datagrams with their sender.
    queues: FairQueues<(usize, Datagram)>,
    /// Part of `limits.memory` for the queues.
    _memory: Share,
}

impl Core {
    /// Begins a turn, with the driver's part.
    pub(crate) fn begin_turn(&mut self) {
        self.turns.spent = Duration::ZERO;
        (self.turns.begun, self.turns.unchecked) = (None, 0);
    }

    /// Ends the driver's part. `unread` tells that the sockets may have more. What datagrams have
    /// caused, such as new flows, may have taken longer than reading them.
    pub(crate) fn end_reading(&mut self, unread: bool) {
        if unread {
            self.is_turn_over();
        }
        self.turns.unread = unread;
        self.end_part();
    }

    /// Begins a connection's part.
    pub(crate) fn begin_part(&mut self) {
        self.turns.begun = Some(self.now());
    }

    /// Ends a part.
    pub(crate) fn end_part(&mut self) {
        if let Some(begun) = self.turns.begun.take() {
            self.turns.spent += self.now().saturating_sub(begun);
        }
    }

    /// Returns whether the turn's budget is used up. The driver's part counts from its first call.
    fn is_over(&mut self) -> bool {
        let now = self.now();
        let budget = if self.is_overloaded() {
            READ_AHEAD
        } else {
            BUDGET
        };
        let turns = &mut self.turns;
        let begun = *turns.begun.get_or_insert(now);
        turns.spent + now.saturating_sub(begun) >= budget
    }

    /// Returns whether to leave what else has arrived for the next turn.
    pub(crate) fn is_turn_over(&mut self) -> bool {
        let is_over = self.is_over();
        if is_over && !self.is_alone() {
            self.overload();
        }
        is_over
    }

    /// Returns whether datagrams wait for their sender's turn.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.turns.waiting.is_some()
    }

    /// Returns whether this turn only handles what waits: without other peers, the kernel's receive
    /// buffer is as good a queue, and costs no copy.
    pub(crate) fn only_works_off(&self) -> bool {
        self.is_overloaded() && self.is_alone()
    }

    /// Returns whether there is no more than one peer.
    pub(crate) fn is_alone(&self) -> bool {
        self.peers.list.len() < 2
    }

    /// Returns the party in whose share of the time a flow runs that a peer has opened for this
    /// client. A peer may invent clients, so they count only where it is alone.
    pub(crate) fn party(&self, peer: usize, client: IpAddr) -> Party {
        if self.is_alone() {
            Party::host(client)
        } else {
            Party::Peer(self.peers.list[peer].name)
        }
    }

    /// Lets datagrams wait by sender, if there is memory for that.
    fn overload(&mut self) {
        if self.is_overloaded() {
            return;
        }
        let budget = &self.context.budget;
        let total = WAITING_MAX.min(budget.limit() / WAITING_PART);
        let bounds = Bounds {
            party: total / SENDER_PART,
            total,
        };
        self.turns.waiting = Share::take(budget, total).map(|memory| Waiting {
            queues: FairQueues::new(bounds),
            _memory: memory,
        });
        // The driver works off what waits, and ends the overload.
        self.wake_driver();
    }

    /// Takes a received datagram: handles it, or lets it wait.
    pub(crate) fn receive(
        &mut self,
        arrived: Duration,
        (from, to): (Remote, Option<IpAddr>),
        ecn: Ecn,
        datagram: &mut [u8],
    ) {
        self.check();
        if !self.is_overloaded() || self.member.owner(datagram).is_some() {
            return self.take_datagram(arrived, (from, to), ecn, datagram);
        }
        let sender = self.endpoint.claimed_sender(from, datagram);
        let bytes = (&*datagram).into();
        let at = arrived;
        self.let_wait(
            sender,
            Datagram {
                at,
                from,
                to,
                ecn,
                bytes,
            },
        );
    }

    /// Reads the clock now and then.
    pub(crate) fn check(&mut self) {
        self.turns.unchecked += 1;
        if self.turns.unchecked >= CHECK_EVERY {
            self.turns.unchecked = 0;
            if self.is_over() {
                self.overload();
            }
        }
    }

    /// Lets a datagram wait for its sender's turn. To be called while [overloaded](
    /// Self::is_overloaded). One that came by TCP is never dropped:
    /// [`is_queue_full`](Self::is_queue_full) bounds their number.
    pub(crate) fn let_wait(&mut self, sender: Option<PeerId>, datagram: Datagram) {
        let sender = self.place_of(sender);
        let Some(waiting) = &mut self.turns.waiting else {
            return;
        };
        let size = datagram.bytes.len() as u64 + OVERHEAD;
        let dropped = match datagram.from.carrier {
            Carrier::Udp => waiting.queues.push(sender, size, (sender, datagram)),
            Carrier::Tcp => waiting.queues.push_kept(sender, size, (sender, datagram)),
        };
        for (dropped, _) in dropped {
            self.turns.shed = (self.turns.shed.0 + 1, dropped);
        }
    }

    fn place_of(&self, sender: Option<PeerId>) -> usize {
        sender.map_or(STRANGERS, |peer| self.peers.index(peer) + 1)
    }

    /// Returns whether a peer has its share of the queues: its connections then wait, as nothing
    /// that TCP has delivered may be dropped.
    pub(crate) fn is_queue_full(&self, peer: PeerId) -> bool {
        let sender = self.place_of(Some(peer));
        let waiting = self.turns.waiting.as_ref();
        waiting.is_some_and(|waiting| waiting.queues.has_share(sender))
    }

    /// Handles waiting datagrams, those of each sender in turn, until the budget of a turn is used
    /// up. Events are handled in the turn of the sender that has caused them: those of one datagram
    /// may take longer than many other datagrams. Returns whether more wait.
    pub(crate) fn work_off(shared: &Shared) -> bool {
        let begun = shared.borrow().now();
        let mut now = begun;
        while now < begun + WORK {
            let Some((sender, datagram)) = shared.borrow_mut().next_waiting() else {
                break;
            };
            shared.borrow_mut().take_waiting(datagram);
            Self::dispatch(shared);
            now = shared.borrow_mut().charge(sender, now);
        }
        let core = &mut *shared.borrow_mut();
        let reads_on = core.turns.unread && !core.is_alone();
        core.turns
            .waiting
            .take_if(|waiting| waiting.queues.is_empty() && !reads_on);
        core.tcp.wake_waiting();
        core.is_overloaded()
    }

    fn next_waiting(&mut self) -> Option<(usize, Datagram)> {
        let (_, next) = self.turns.waiting.as_mut()?.queues.pop()?;
        Some(next)
    }

    fn take_waiting(&mut self, mut datagram: Datagram) {
        let (from, bytes) = (datagram.from, &mut datagram.bytes);
        match from.carrier {
            Carrier::Udp => {
                self.take_datagram(datagram.at, (from, datagram.to), datagram.ecn, bytes);
            }
            Carrier::Tcp => self.take_from_peer(from.address, bytes),
        }
    }

    /// Charges a sender the time since `since`. Returns the time.
    fn charge(&mut self, sender: usize, since: Duration) -> Duration {
        let now = self.now();
        if let Some(waiting) = &mut self.turns.waiting {
            waiting.queues.charge(sender, now.saturating_sub(since));
        }
        now
    }

    /// Returns the number of datagrams dropped since the last call, and the sender of the latest.
    pub(crate) fn take_shed(&mut self) -> (u64, &str) {
        let (count, sender) = std::mem::take(&mut self.turns.shed);
        let peer = sender.checked_sub(1).map(|index| self.peer_name(index));
        (count, peer.unwrap_or("(strangers)"))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, rc::Rc};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::{spawn_local, yield_now},
    };

    use super::*;
    use crate::rig::{self, Rig, listener};

    fn junk() -> Datagram {
        junk_from(SocketAddr::from(([192, 0, 2, 9], 9)).into())
    }

    fn junk_from(from: Remote) -> Datagram {
        Datagram {
            at: Duration::ZERO,
            from,
            to: None,
            ecn: Ecn::NotEct,
            bytes: vec![5; 100].into(),
        }
    }

    /// Sends bytes through a flow and back.
    async fn echo(rig: &Rig) {
        let listener = listener().await;
        let mut client = rig.client(listener.local_addr().unwrap()).await;
        let (mut server, _) = listener.accept().await.unwrap();
        let sent = vec![7; 400_000];
        let bytes = sent.clone();
        let question = spawn_local(async move {
            client.write_all(&bytes).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
        server.write_all(&received).await.unwrap();
        drop(server);
        assert!(question.await.unwrap() == sent);
    }

    #[test]
    fn flows_go_on_while_all_datagrams_wait_for_their_turn() {
        Rig::run(|rig| async move {
            let ends = [Rc::clone(&rig.near), Rc::clone(&rig.far)];
            let always = spawn_local(async move {
                loop {
                    ends.iter().for_each(|end| end.borrow_mut().overload());
                    yield_now().await;
                }
            });
            echo(&rig).await;
            always.abort();
            let _ = always.await;
            for end in [&rig.near, &rig.far] {
                assert!(!Core::work_off(end));
            }
            rig.wait_idle().await;
        });
    }

    #[test]
    fn a_flood_of_strangers_costs_a_peer_nothing() {
        Rig::run(|rig| async move {
            let far = Rc::clone(&rig.far);
            let shed = spawn_local(async move {
                let mut shed = 0;
                loop {
                    {
                        let core = &mut *far.borrow_mut();
                        core.overload();
                        (0..1000).for_each(|_| core.let_wait(None, junk()));
                        let (count, sender) = core.take_shed();
                        assert_eq!(sender, "(strangers)");
                        shed += count;
                    }
                    if shed > 10_000 {
                        return shed;
                    }
                    yield_now().await;
                }
            });
            echo(&rig).await;
            assert!(shed.await.unwrap() > 10_000);
            rig.wait_idle().await;
        });
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_many_peers_send_by_tcp_is_never_shed() {
        let others: Vec<_> = (1..=20).map(|other| (other, None)).collect();
        let shared = rig::core(200, &others);
        let ids = shared.borrow().peers.ids();
        let at = SocketAddr::from(([192, 0, 2, 1], 1));
        let (mut taken, mut shed) = (vec![0; ids.len()], 0);
        for _ in 0..20 {
            {
                let core = &mut *shared.borrow_mut();
                core.overload();
                assert!(core.is_overloaded(), "there is memory");
                for (taken, id) in taken.iter_mut().zip(&ids) {
                    // As its connection does.
                    while !core.is_queue_full(*id) {
                        core.let_wait(Some(*id), junk_from(Remote::tcp(at)));
                        *taken += 1;
                    }
                    (0..100).for_each(|_| core.let_wait(None, junk()));
                    let (count, sender) = core.take_shed();
                    assert!(count == 0 || sender == "(strangers)", "{count} of {sender}");
                    shed += count;
                }
            }
            assert!(
                taken.iter().all(|taken| *taken > 0),
                "none waits for others"
            );
            Core::work_off(&shared);
        }
        while Core::work_off(&shared) {}
        let core = shared.borrow();
        assert_eq!(core.tcp.counted.received, taken.iter().sum::<u64>());
        assert!(shed > 0);
    }

    #[test]
    fn a_turn_is_over_after_its_budget() {
        Rig::run(|rig| async move {
            let core = &mut *rig.far.borrow_mut();
            core.begin_turn();
            (1..CHECK_EVERY).for_each(|_| core.check());
            assert_eq!(core.turns.begun, None, "no reading of the clock for a few");
            core.check();
            let begun = core.turns.begun.expect("a reading");
            while !core.is_turn_over() {}
            assert!(core.now() >= begun + BUDGET);
            assert!(!core.is_overloaded(), "a single peer waits in the kernel");
            (0..CHECK_EVERY).for_each(|_| core.check());
            assert!(core.only_works_off(), "what has been read waits here");
            core.begin_turn();
            assert!(!core.is_turn_over(), "each turn has its own budget");
        });
    }

    #[tokio::test(flavor = "current_thread")]
    async fn time_for_events_counts_in_the_turn_that_has_read_them() {
        let shared = rig::core(201, &[(1, None), (2, None)]);
        let core = &mut *shared.borrow_mut();
        let mut overloaded_by = |unread| {
            core.begin_turn();
            assert!(!core.is_turn_over(), "the turn has begun");
            // New flows of a few datagrams.
            let begun = core.now();
            while core.now() < begun + BUDGET {}
            core.end_reading(unread);
            core.is_overloaded()
        };
        assert!(!overloaded_by(false), "nothing else has arrived");
        assert!(overloaded_by(true));
    }
}

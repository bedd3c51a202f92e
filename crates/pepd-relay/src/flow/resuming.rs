//! Flows taken over from a predecessor.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pep_core::{
    arena::{Counters, DirectionRecord, Disagreement, recover_direction},
    budget::Share,
    relay::{Direction, Ending, PerSide, Relay, Side},
};
use pepd_sys::{
    leg::{FromSyn, SiteRuntime},
    socket,
};

use super::{Flow, FlowContext, FlowInfo, FlowMemory, ServerLeg, refuse, serve, waiting};
use crate::{arena::SlotState, survive::Survivor};

/// Reason why a flow is reset instead of taken over.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Leg missing among the predecessor's sockets.
    #[error("a leg is missing")]
    Leg,
    /// Bytes were received before the published state permitted any.
    #[error("bytes were received before the flow's state was published")]
    Early,
    /// Published state and kernel counters contradict each other.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
}

/// Flow to be taken over by [`resume`].
#[derive(Debug)]
pub struct Resumed {
    ends: FlowInfo,
    memory: FlowMemory,
    client: OwnedFd,
    server: Option<OwnedFd>,
    /// Positions of both directions, once both legs were connected.
    relay: Option<RelayState>,
    born: u64,
    /// Bytes by which the published positions lagged behind.
    pub repaired: u64,
}

#[derive(Debug)]
struct RelayState {
    directions: [DirectionRecord; 2],
    broken: PerSide<Option<Ending>>,
}

impl Resumed {
    /// Prepares a survivor with both legs in this process, as a flow of `site`.
    ///
    /// # Errors
    /// Fails if the flow cannot continue.
    pub fn new(
        context: &FlowContext,
        survivor: Survivor,
        site: Arc<SiteRuntime>,
    ) -> Result<Self, Lost> {
        let Survivor {
            slot,
            record,
            legs: [client, server],
            counters,
        } = survivor;
        let ends = FlowInfo {
            client: record.identity.client,
            destination: record.identity.destination,
            site,
            peer: None,
        };
        let client = client.ok_or(Lost::Leg)?;
        let (relay, repaired) = match (record.state, counters) {
            (SlotState::Accepted, [Some(reported), _]) if reported.read + reported.written == 0 => {
                (None, 0)
            }
            (SlotState::Accepted, _) => return Err(Lost::Early),
            (_, [Some(client), Some(server)]) => {
                let (state, repaired) = RelayState::new(&record.directions, &[client, server])?;
                (Some(state), repaired)
            }
            _ => return Err(Lost::Leg),
        };
        // In use already, whatever the limit.
        let mut share = Share::none(&context.budget);
        let initial = 2 * context.limits.ring_initial;
        let rings = record.directions.iter().map(|part| part.size).sum();
        share.grow(if relay.is_some() { rings } else { initial });
        Ok(Self {
            ends,
            memory: FlowMemory { slot, share },
            client,
            server,
            relay,
            born: record.identity.born,
            repaired,
        })
    }

    /// Prepares a flow that was accepted just before the process ended. `None` if its client has
    /// gone, or without memory.
    pub fn accepted(context: &FlowContext, ends: FlowInfo, client: OwnedFd) -> Option<Self> {
        let memory = context.take_memory()?;
        memory.publish_accepted(context, &ends, client.as_fd());
        let born = memory.slot.record()?.identity.born;
        Some(Self {
            ends,
            memory,
            client,
            server: None,
            relay: None,
            born,
            repaired: 0,
        })
    }
}

impl RelayState {
    fn new(
        published: &[DirectionRecord; 2],
        reported: &[Counters; 2],
    ) -> Result<(Self, u64), Lost> {
        let recover = |direction: Direction| {
            let source = &reported[direction.source() as usize];
            let sink = &reported[direction.sink() as usize];
            recover_direction(&published[direction as usize], source, sink)
        };
        let [up, down] = [recover(Direction::Up)?, recover(Direction::Down)?];
        let directions = [up.direction, down.direction];
        let broken = |side: Side| {
            let Counters {
                closed,
                fin_received,
                ..
            } = reported[side as usize];
            let fin_sent = directions[Direction::from(side.other()) as usize].fin_out;
            let ending = if fin_received {
                Ending::Fin
            } else {
                Ending::Reset
            };
            (closed && !(fin_received && fin_sent)).then_some(ending)
        };
        let broken = PerSide {
            client: broken(Side::Client),
            server: broken(Side::Server),
        };
        Ok((Self { directions, broken }, up.repaired + down.repaired))
    }
}

/// Serves a flow begun by a predecessor until its end.
pub async fn resume(context: Arc<FlowContext>, resumed: Resumed) {
    let Resumed {
        ends,
        memory,
        client,
        server,
        relay,
        born,
        ..
    } = resumed;
    let Some(RelayState { directions, broken }) = relay else {
        return begin_again(context, ends, memory, client, server).await;
    };
    // Present when the state was read.
    let Some(server) = server else { return };
    let FlowMemory { slot, share } = memory.of_host(&context, &ends);
    let relay = Relay::resume(context.limits, share, &directions, broken);
    let Some(mut flow) = Flow::with_relay(context, ends, slot, relay, [client, server]) else {
        return;
    };
    let now = Instant::now();
    flow.began = now.checked_sub(age(born)).unwrap_or(now);
    flow.counted = flow.delivered();
    let link_leg = &flow.legs[flow.ends.site.link_side as usize];
    flow.receive_window.take_over(link_leg.fd());
    // The predecessor may have died while the leg was stuck.
    flow.ends.site.link_leg().cap_retransmissions(link_leg.fd());
    for direction in Direction::ALL {
        flow.publish_direction(direction);
    }
    flow.relay_and_close().await;
}

/// Continues a flow in which no byte has moved: keeps a server leg that is still connecting, or
/// starts another one.
async fn begin_again(
    context: Arc<FlowContext>,
    mut ends: FlowInfo,
    memory: FlowMemory,
    client: OwnedFd,
    server: Option<OwnedFd>,
) {
    let usable = |leg: &OwnedFd| !socket::is_closed(leg.as_fd()).unwrap_or(true);
    let server = match server.filter(usable) {
        Some(server) => Ok(server),
        None if context.outage.is_unsettled() && ends.site.waits_for_link() => {
            let (again, to) = (Arc::clone(&context), ends.clone());
            let begin = move |memory: &FlowMemory| {
                waiting::dial(&again, &to, FromSyn::default(), &memory.slot)
            };
            return waiting::serve_when_up(context, ends, memory, client, begin).await;
        }
        None => waiting::dial(&context, &ends, FromSyn::default(), &memory.slot).inspect(|leg| {
            memory.follow_leg(&context, &mut ends, leg.as_fd());
        }),
    };
    match server {
        Ok(server) => {
            let server = ServerLeg::Connecting(server);
            serve(context, ends, memory, client, server).await;
        }
        Err(err) => {
            memory.slot.publish_state(SlotState::Closed);
            refuse(&context, &ends, client, &err);
        }
    }
}

/// Returns the age of a flow [`born`](super::born) at that time, in any process.
pub fn age(born: u64) -> Duration {
    let born = UNIX_EPOCH + Duration::from_millis(born);
    SystemTime::now().duration_since(born).unwrap_or_default()
}

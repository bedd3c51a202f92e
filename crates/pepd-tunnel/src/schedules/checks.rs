//! Invariants of all schedules.

use pep_core::{relay::Side, stats::Stats};

use super::{plan::FlowPlan, world::World};

/// Excess of held bytes: chunks that return from the disk are not refused.
const RETURNING: u64 = 2 << 16;

/// Checks at every moment that hosts get the sent bytes in order, and that budgets hold.
pub(super) fn always(world: &World) {
    let seed = world.plan.seed;
    for host in &world.hosts {
        let socket = host.socket.lock();
        if let Some(violation) = &socket.violation {
            panic!(
                "seed {seed}: flow {}, {:?}: {violation}",
                host.flow, host.side
            );
        }
        let plan = &world.plan.flows[host.flow];
        let most = plan.hosts[host.side.other() as usize].len;
        assert!(
            socket.written <= most,
            "seed {seed}: flow {} was given {} of {most} bytes",
            host.flow,
            socket.written
        );
        let ends_early = socket.fin_given && socket.written < most && !host.has_reset;
        assert!(
            !ends_early || host.was_reset || socket.is_dead,
            "seed {seed}: flow {}, {:?}: the end came after {} of {most} bytes",
            host.flow,
            host.side,
            socket.written
        );
    }
    for machine in &world.machines {
        let [budget, memory, disk] = machine.peaks;
        let flows = 64 * super::end::INITIAL;
        assert!(
            budget <= world.plan.memory,
            "seed {seed}: {budget} of {} are taken",
            world.plan.memory
        );
        assert!(
            memory <= world.plan.custody + RETURNING * world.flows.len() as u64 + flows,
            "seed {seed}: {memory} held of {}",
            world.plan.custody
        );
        assert!(
            disk <= world.plan.disk.unwrap_or(0),
            "seed {seed}: {disk} on disk"
        );
    }
}

/// Returns whether a flow may have been reset: by a host, a refusing server, or for lack of memory.
fn may_be_reset(world: &World, flow: usize) -> bool {
    let plan: &FlowPlan = &world.plan.flows[flow];
    let by_host = world
        .hosts
        .iter()
        .any(|host| host.flow == flow && host.has_reset);
    let count = |of: fn(&Stats) -> u64| -> u64 {
        world.machines.iter().map(|machine| machine.count(of)).sum()
    };
    let refused = count(|stats| stats.tunnel_flows_refused) > 0;
    let expired = world.plan.expires && count(|stats| stats.ended_expired) > 0;
    let damaged = world.plan.damages && count(|stats| stats.custody_flows_damaged) > 0;
    plan.refused || by_host || refused || expired || damaged
}

fn is_whole(world: &World, flow: usize) -> bool {
    let plan = &world.plan.flows[flow];
    Side::ALL.into_iter().all(|side| {
        let host = world.flows[flow].hosts[side as usize];
        let expected = plan.hosts[side.other() as usize].len;
        host.is_some_and(|host| world.hosts[host].is_whole(expected))
    })
}

/// Returns the number of flows that both hosts have completely.
pub(super) fn whole(world: &World) -> u64 {
    (0..world.flows.len())
        .filter(|flow| is_whole(world, *flow))
        .count() as u64
}

/// Describes the state of the machines for failure messages.
fn state(world: &World) -> String {
    let mut text = String::new();
    for machine in &world.machines {
        let interesting = |(name, count): &(&str, u64)| *count > 0 && !name.contains("datagram");
        let ended: Vec<_> = machine
            .before
            .iter()
            .copied()
            .chain(machine.process.as_ref().map(super::end::Process::stats))
            .map(|stats: Stats| stats.entries().filter(interesting).collect::<Vec<_>>())
            .collect();
        text += &format!("\n  left: {:?}; counted: {ended:?}", machine.leftovers());
    }
    for host in &world.hosts {
        text += &format!("\n  {host:?}");
    }
    text
}

/// Checks at the end that everything has been delivered and nothing is left.
pub(super) fn at_the_end(world: &World) {
    let seed = world.plan.seed;
    for flow in 0..world.flows.len() {
        let plan = &world.plan.flows[flow];
        assert!(
            is_whole(world, flow) || may_be_reset(world, flow),
            "seed {seed}: flow {flow} is not whole after {:?}: {plan:?}{}",
            world.now(),
            state(world)
        );
    }
    for (end, machine) in world.machines.iter().enumerate() {
        let left = machine.leftovers();
        assert!(
            left.is_none(),
            "seed {seed}: end {end} has something left after {:?}: {left:?}{}",
            world.now(),
            state(world)
        );
        let lost = machine.count(|stats| stats.flows_lost_at_restart);
        assert_eq!(
            lost,
            0,
            "seed {seed}: flows lost at a restart{}",
            state(world)
        );
    }
}

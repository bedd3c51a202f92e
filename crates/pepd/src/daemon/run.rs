//! Operation and drain.

use std::{collections::BTreeSet, convert::Infallible, process, sync::Arc, time::Duration};

use pep_core::{config::Config, hosts::Host, stats::Stats};
use pepd_api::exit::ExitStatus;
use pepd_intercept::{
    Interception, LeftAlone, MidwayTask, defer::DeferTask, neigh::NeighbourWatch,
    program::runner::Runner, rule_watch::RuleWatch,
};
use pepd_relay::{
    flow::FlowContext,
    limits::Admission,
    share::Sampler,
    survive::{
        claim::Claim,
        heartbeat,
        keeper::{Keeper, PATIENCE},
    },
};
use pepd_sys::{congestion::Controls, gate::Gate, leg::SiteRuntime, load::Source, stats};
use pepd_tunnel::{Tunnels, boosted::Boosters};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};
use units::counted;
use units::duration;

use super::{
    Role,
    beside::Beside,
    bypassed::Bypassed,
    chores::{self, Chores},
    hosts::HostsAtCap,
    redirected::Redirected,
    signals::{EndOfDrain, Guard, Signals},
    spare::Spare,
};
use crate::{
    admin::Admin,
    change::{self, Drain, Reload},
    observe::{self, Observer},
    probe,
    service::Service,
    switches::{self, Switches},
    workers::Workers,
};

/// All running parts.
#[derive(Debug)]
pub(super) struct Daemon {
    /// Claim, held until rules and routes are removed.
    pub(super) claim: Claim,
    pub(super) controls: Controls,
    pub(super) config: Arc<Config>,
    pub(super) context: Arc<FlowContext>,
    pub(super) interception: Interception,
    pub(super) defer: Option<DeferTask>,
    pub(super) midway: Option<MidwayTask>,
    pub(super) neighbours: Option<NeighbourWatch>,
    pub(super) workers: Workers,
    pub(super) tunnels: Option<Tunnels>,
    pub(super) boosters: Option<Boosters>,
    pub(super) sites: Vec<Arc<SiteRuntime>>,
    /// Limit of descriptors.
    pub(super) descriptors: u64,
    pub(super) spare: Spare,
    pub(super) chores: Chores,
    pub(super) redirected: Redirected,
    pub(super) beside: Beside,
    /// Keeper, if flows outlive this process.
    /// The process that runs programs; `None` once it has ended.
    pub(super) runner: Option<Runner>,
    pub(super) keeper: Option<Keeper>,
}

/// Next event for the daemon.
enum Event {
    Stop,
    Report,
    HandOver,
    Reload,
    Unguarded,
    Gate(Gate),
    Bypassed(LeftAlone),
    HostsAtCap(BTreeSet<Host>),
    /// Policy rules of another program have changed.
    Rules,
    Tick,
}

impl Daemon {
    /// Starts the heartbeat.
    pub(super) fn show_heartbeat(&self, role: Role) {
        let Role::Worker {
            heartbeat,
            hangs,
            reverted,
            ..
        } = role
        else {
            return;
        };
        self.context.counters.update(|stats| {
            stats.hangs = hangs;
            stats.reverts = reverted.into();
        });
        match heartbeat.map(heartbeat::pipe) {
            None => {}
            Some(Ok(pipe)) => {
                let context = Arc::clone(&self.context);
                tokio::spawn(async move { context.heartbeat.send(pipe).await });
            }
            Some(Err(err)) => {
                tracing::warn!(error = %err, "heartbeat unavailable: a hang of this process stays undetected");
            }
        }
    }

    /// Runs until a signal ends it.
    pub(super) async fn run(mut self, source: Source) -> ExitStatus {
        // Ends with the runtime: hosts repeat SYNs that are held then, and the repeats pass.
        if let Some(defer) = self.defer.take() {
            tokio::spawn(run_defer(defer, self.config.obeys_forward()));
        }
        if let Some(midway) = self.midway.take() {
            tokio::spawn(midway.run());
        }
        if let Some(neighbours) = self.neighbours.take() {
            tokio::spawn(neighbours.run());
        }
        if let Some(link) = &self.context.link {
            tokio::spawn(Sampler::new(Arc::clone(link)).run());
        }
        tokio::spawn(Arc::clone(&self.context.outage).run(Arc::clone(&self.config)));
        let switches = Switches::new(&self.config, &self.context.arena);
        let observer = self.observer(&switches);
        tokio::spawn(Arc::clone(&observer).run());
        let survives = self.keeper.is_some();
        let reload = Reload::new(source, &self.config, &self.context, survives);
        let drain = Drain::new(&self.context.admission, self.config.drain);
        let more = observe::routes(&observer)
            .merge(change::router(Arc::clone(&reload), Arc::clone(&drain)))
            .merge(switches::router(Arc::clone(&switches)))
            .merge(probe::router(
                &self.config,
                self.tunnels.as_ref().map(Tunnels::prober),
            ));
        let mut admin = Admin::new(&self.config, &self.context, more);
        if let Err(err) = admin.bind() {
            tracing::warn!(error = %err, "no admin socket: commands cannot reach this pepd (`pepd status`, `reload`, `link`)");
        }
        tokio::spawn(admin.run());
        let signals = Signals::new(self.keeper.is_some());
        let status = match signals {
            Ok(mut signals) => {
                self.serve(&mut signals, &reload, &switches).await;
                self.drain(&mut signals, &drain).await
            }
            Err(err) => {
                tracing::error!(error = %err, "cannot handle signals");
                ExitStatus::Runtime
            }
        };
        self.end(status).await
    }

    fn observer(&self, switches: &Arc<Switches>) -> Arc<Observer> {
        let threads = (self.tunnels.as_ref(), self.boosters.as_ref());
        let descriptors = self.descriptors;
        Observer::new(
            &self.config,
            &self.context,
            &self.sites,
            threads,
            descriptors,
            switches,
            self.interception.rules_by(),
        )
    }

    fn log_ready(&self) {
        let names: Vec<_> = self.sites.iter().map(|site| site.name.as_str()).collect();
        let ports: Vec<_> = self.sites.iter().map(|site| site.port).collect();
        // They have no listener, and so no port.
        let packet_sites = self.config.packet_sites().count();
        tracing::info!(sites = ?names, ports = ?ports, packet_sites, "pepd is ready");
        if self.keeper.is_none() {
            // With a supervisor, that process notifies the service manager.
            tokio::spawn(notify_service(Arc::clone(&self.context.admission)));
        }
    }

    /// Runs until the first signal to stop.
    async fn serve(
        &mut self,
        signals: &mut Signals,
        reload: &Arc<Reload>,
        switches: &Arc<Switches>,
    ) {
        let mut gate = self.context.admission.gate();
        let tunnels = self.tunnels.as_ref();
        let tunnels = tunnels.map(Tunnels::statuses);
        let mut bypassed = Bypassed::new(tunnels, &self.context, switches);
        // Sites that the previous process had bypassed.
        let left = bypassed.next().await;
        bypassed.are(self.set_bypassed(left).await);
        // Rules of other programs are known before any connection arrives.
        let now = *gate.borrow();
        self.tick(now).await;
        self.log_ready();
        let mut hosts = HostsAtCap::new(&self.context.admission);
        let mut failed = None;
        let mut guard = self.keeper.as_ref().and_then(|_| Guard::new());
        let mut rules = RuleWatch::default();
        self.spare.fill();
        let mut tick = interval(Self::TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                _ = signals.terminate.recv() => Event::Stop,
                _ = signals.interrupt.recv(), if !signals.guarded => Event::Stop,
                _ = signals.report.recv() => Event::Report,
                _ = signals.hand_over.recv() => Event::HandOver,
                _ = signals.reload.recv() => Event::Reload,
                () = Guard::ended(&mut guard) => Event::Unguarded,
                gate = changed(&mut gate) => Event::Gate(gate),
                left = bypassed.next() => Event::Bypassed(left),
                at_cap = hosts.next() => Event::HostsAtCap(at_cap),
                () = rules.changed() => Event::Rules,
                _ = tick.tick() => Event::Tick,
            };
            match event {
                Event::Stop => return signals.on_first_stop(),
                Event::Report => self.report().await,
                Event::HandOver => self.hand_over(),
                Event::Reload => {
                    let reload = Arc::clone(reload);
                    tokio::spawn(async move { reload.run_and_log().await });
                }
                Event::Unguarded => tracing::error!(
                    "supervisor has ended: flows continue, but will wait after the end of \
                     this process until `pepd run` takes them over"
                ),
                Event::Gate(gate) => failed = self.set_gate(gate).await.err(),
                Event::Bypassed(left) => {
                    bypassed.are(self.set_bypassed(left).await);
                }
                Event::HostsAtCap(at_cap) => self.set_hosts_at_cap(&mut hosts, at_cap).await,
                Event::Rules => {
                    let now = *gate.borrow();
                    let checked = self.look_after(now).await;
                    self.beside.inspect(checked, &self.interception).await;
                }
                Event::Tick => {
                    // A borrow would block the tasks that move the gate.
                    let now = *gate.borrow();
                    self.tick(now).await;
                    // The missing resource, a descriptor for nft perhaps, may be available now.
                    if let Some(gate) = failed {
                        failed = self.set_gate(gate).await.err();
                    }
                    if let Some(at_cap) = hosts.again() {
                        self.set_hosts_at_cap(&mut hosts, at_cap).await;
                    }
                }
            }
        }
    }

    const TICK: Duration = Duration::from_secs(1);

    async fn tick(&mut self, gate: Gate) {
        self.spare.fill();
        self.check_runner();
        self.renew_keeper();
        let checked = self.look_after(gate).await;
        let (context, sites) = (&self.context, &self.sites);
        let interception = &mut self.interception;
        if self.redirected.check(interception, context, sites).await {
            self.beside.log(true);
        }
        self.beside.inspect(checked, &self.interception).await;
        self.chores.tidy(&self.context, &self.config);
    }

    /// Checks and restores what is installed. Returns false if nothing has changed since.
    async fn look_after(&mut self, gate: Gate) -> bool {
        let interception = &mut self.interception;
        let looked = self.chores.look_after(interception, gate, &mut self.spare);
        let looked = looked.await;
        if looked.mended {
            self.redirected.hurry();
            if let Err(err) = interception.forget_filtered().await {
                let error = &err as &dyn std::error::Error;
                tracing::debug!(
                    error,
                    "cannot take connections again that did not reach pepd"
                );
            }
        }
        self.redirected.cannot_arrive(looked.undelivered);
        self.redirected.are_not_delivered(looked.broken);
        looked.checked
    }

    /// Ends this process at once; the next one continues its flows from their present state.
    fn hand_over(&mut self) {
        if self.keeper.is_none() {
            tracing::warn!(
                "SIGUSR2 ignored: `custody.survive` is off, so flows cannot be handed over"
            );
            return;
        }
        self.redirected
            .conclude(&self.interception, &self.context, &self.sites);
        let flows = counted(self.context.admission.open_flows().into(), "flow");
        tracing::info!("worker process ends, the next one takes over {flows}");
        self.controls.unregister();
        process::exit(ExitStatus::Success.code().into());
    }

    /// Ends this process if the one that runs programs was killed: this one may start no other. The
    /// next one takes over the flows.
    fn check_runner(&mut self) {
        if !self.runner.as_mut().is_some_and(Runner::has_ended) {
            return;
        }
        self.runner = None;
        if self.keeper.is_none() {
            tracing::error!(
                "process pepd-runner was killed: pepd can change and remove its rules no more; restart pepd, then run \
                 `pepd cleanup` if it is to stay stopped"
            );
            return;
        }
        tracing::error!(
            "process pepd-runner was killed: this worker ends, the next one takes over its flows"
        );
        self.controls.unregister();
        process::exit(ExitStatus::Runtime.code().into());
    }

    /// Starts a new keeper after the old one was killed, perhaps by the kernel's OOM killer.
    fn renew_keeper(&mut self) {
        if !self.keeper.as_mut().is_some_and(Keeper::has_ended) {
            return;
        }
        let renewed = Keeper::new(PATIENCE).and_then(|keeper| {
            self.claim.set_keeper(keeper.id())?;
            Ok(keeper)
        });
        match renewed {
            Ok(keeper) => {
                self.keeper = Some(keeper);
                tracing::warn!("keeper process was killed: started another");
            }
            Err(err) => tracing::error!(
                error = %err,
                "keeper process was killed, and another cannot be started, retrying every second: \
                 until then flows end with this process"
            ),
        }
    }

    async fn report(&mut self) {
        self.spare.release();
        let stats = collect(&self.context, &self.interception).await;
        self.spare.fill();
        stats::log(&stats);
    }

    /// Updates the bypassed flows. Returns true on success.
    async fn set_bypassed(&mut self, left: LeftAlone) -> bool {
        self.spare.release();
        let result = self.interception.set_bypassed(left).await;
        self.spare.fill();
        if let Err(err) = &result {
            let error = err as &dyn std::error::Error;
            tracing::error!(
                error,
                "cannot change the rules for bypassed sites, retrying: the previous ones still apply; see `pepd check`"
            );
        }
        result.is_ok()
    }

    /// Updates the hosts at their flow limit. A failure is retried every second.
    async fn set_hosts_at_cap(&mut self, hosts: &mut HostsAtCap, at_cap: BTreeSet<Host>) {
        self.spare.release();
        let result = self.interception.set_hosts_at_cap(at_cap.clone()).await;
        self.spare.fill();
        match result {
            Ok(()) => hosts.on_filter_updated(&at_cap, &self.context.admission),
            Err(err) => {
                let error = &err as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "cannot update the rules for hosts at limits.flows_per_host, retrying: see `pepd check`"
                );
                hosts.on_failed();
            }
        }
    }

    /// Sets the gate, and returns it as an error on failure.
    async fn set_gate(&mut self, gate: Gate) -> Result<(), Gate> {
        self.spare.release();
        let result = self.interception.set_gate(gate).await;
        self.spare.fill();
        if let Err(err) = result {
            let what = match gate {
                Gate::Closed => "close the gate, retrying: new flows still reach pepd",
                Gate::Open => "open the gate, retrying: new flows still pass unaccelerated",
            };
            tracing::error!(
                error = &err as &dyn std::error::Error,
                "cannot {what}; see `pepd check`"
            );
            return Err(gate);
        }
        match gate {
            Gate::Closed if !self.interception.has_gate() => tracing::warn!(
                "a limit is reached, and new flows wait: pepd changes no rules (`intercept.rules`)"
            ),
            Gate::Closed => tracing::warn!("the gate is closed: new flows pass unaccelerated"),
            Gate::Open => tracing::info!("the gate is open again: new flows are accelerated"),
        }
        Ok(())
    }

    /// Drains: no further flow, and time for open ones to end.
    async fn drain(&mut self, signals: &mut Signals, drain: &Drain) -> ExitStatus {
        self.context.admission.stop();
        self.spare.release();
        signals.forget_hand_over();
        if let Err(err) = self.claim.set_draining() {
            tracing::warn!(error = %err, "a pepd that starts before this one has ended cannot take over its flows");
        }
        let ended = tokio::select! {
            status = self.drained(drain.start()) => return status,
            ended = signals.end_of_drain() => ended,
        };
        if matches!(ended, EndOfDrain::HandOver) {
            self.hand_over();
        }
        ExitStatus::AtOnce
    }

    async fn drained(&self, grace: Duration) -> ExitStatus {
        let admission = &self.context.admission;
        let closed = self.close_gate().await;
        let flows = admission.open_flows();
        tracing::info!(flows, "{}", draining(flows.into(), grace));
        tokio::select! {
            ended = timeout(grace, admission.all_ended()) => match ended {
                Ok(()) => ExitStatus::Success,
                Err(_elapsed) => ExitStatus::FlowsReset,
            },
            never = self.tick_while_draining(closed) => match never {},
        }
    }

    /// Closes the gate. Returns true on success.
    async fn close_gate(&self) -> bool {
        let closed = self.interception.set_gate(Gate::Closed).await;
        if let Err(err) = &closed {
            let error = err as &dyn std::error::Error;
            tracing::warn!(
                error,
                "cannot close the gate, retrying: new flows still reach pepd while it drains"
            );
        }
        closed.is_ok()
    }

    /// Runs the periodic tasks until the last flow has ended.
    async fn tick_while_draining(&self, mut closed: bool) -> Infallible {
        let mut tick = interval(Self::TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.tick().await;
        loop {
            tick.tick().await;
            closed = closed || self.close_gate().await;
            self.interception.signal();
            chores::sweep(&self.context);
        }
    }

    /// Resets open flows, then removes the rules: the hosts' packets still reach pepd meanwhile.
    async fn end(mut self, status: ExitStatus) -> ExitStatus {
        self.claim.end_drain();
        let flows = counted(self.context.admission.open_flows().into(), "flow");
        self.workers.stop();
        if let Some(tunnels) = self.tunnels {
            tunnels.stop();
        }
        if let Some(boosters) = self.boosters {
            boosters.stop();
        }
        stats::log_counted(&collect(&self.context, &self.interception).await);
        self.interception.remove_or_warn().await;
        self.controls.unregister();
        match status {
            ExitStatus::Success => tracing::info!("drained"),
            ExitStatus::AtOnce => tracing::warn!("ended at once: reset {flows}"),
            _ => tracing::warn!("reset {flows}"),
        }
        drop(self.keeper);
        status
    }
}

/// Returns the log line at the start of a drain, with the time limit for waiting operators.
fn draining(flows: u64, grace: Duration) -> String {
    if flows == 0 {
        return "draining".to_owned();
    }
    let grace = duration::format(grace);
    format!("draining: flows may take {grace} to end; another signal (Ctrl-C) resets them at once")
}

/// Notifies the service manager.
async fn notify_service(admission: Arc<Admission>) {
    let mut service = Service::default();
    let mut tick = interval(Daemon::TICK);
    loop {
        tick.tick().await;
        service.notify(true, admission.is_stopping());
    }
}

async fn run_defer(defer: DeferTask, obeys: bool) {
    if let Err(err) = defer.run(std::future::pending()).await {
        if obeys {
            // Hosts would repeat their SYNs in vain. Flows outlive this process.
            tracing::error!(error = %err, "hosts' SYNs do not reach pepd any more (`forward = \"obey\"`): it starts anew");
            process::abort();
        }
        tracing::error!(error = %err, "sites with syn = defer are no longer accelerated: their connections pass; restart pepd");
    }
}

/// Returns the gate when it has changed.
async fn changed(gate: &mut watch::Receiver<Gate>) -> Gate {
    if gate.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
    *gate.borrow_and_update()
}

/// Returns all counters.
async fn collect(context: &FlowContext, interception: &Interception) -> Stats {
    let mut stats = observe::gather(context);
    match interception.passed() {
        Ok(passed) => observe::set_passed(&mut stats, passed),
        Err(err) => tracing::warn!(error = %err, "cannot read the counters of passed SYNs"),
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_logs_its_time_limit_and_how_to_shorten_it() {
        let text = draining(1, Duration::from_secs(10));
        assert!(text.contains("10s") && text.contains("Ctrl-C"), "{text}");
        assert_eq!(draining(0, Duration::from_secs(10)), "draining");
    }
}

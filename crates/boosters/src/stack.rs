//! Boosters in order.

use std::{collections::VecDeque, time::Duration};

use crate::{
    booster::{Booster, Out},
    packet::Packet,
    rule::{Path, Rule, Switch},
};

/// Booster with its name and rule.
#[derive(Debug)]
pub struct Layer {
    /// Name in configurations and counters.
    pub name: &'static str,
    /// Required abilities of the far end, as [`crate::wire::Abilities`].
    pub needs: u32,
    switch: Switch,
    supported: bool,
    booster: Box<dyn Booster>,
}

impl Layer {
    /// Creates a layer that follows a rule, as long as the far end has these abilities.
    pub fn new(
        name: &'static str,
        needs: u32,
        rule: Rule,
        booster: impl Booster + 'static,
    ) -> Self {
        Self {
            name,
            needs,
            switch: Switch::new(rule),
            supported: needs == 0,
            booster: Box::new(booster),
        }
    }

    /// Returns whether it currently handles packets for the link.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.supported && self.switch.is_on()
    }

    fn deadline(&self) -> Option<Duration> {
        self.booster.deadline().filter(|_| self.supported)
    }
}

/// Boosters from the hosts' side (first) to the link's (last).
#[derive(Debug, Default)]
pub struct Stack {
    layers: Vec<Layer>,
    work: VecDeque<(usize, bool, Packet)>,
    out: Out,
}

impl Stack {
    /// Creates a stack of these layers.
    #[must_use]
    pub fn new(layers: Vec<Layer>) -> Self {
        Self {
            layers,
            ..Self::default()
        }
    }

    /// Takes a packet from the hosts' side. Output of either end is appended to `exit`.
    pub fn down(&mut self, now: Duration, packet: Packet, exit: &mut Out) {
        // Most packets meet no booster, and need no place among those between two of them.
        match self.layers.iter().position(Layer::is_on) {
            Some(first) => {
                self.work.push_back((first, true, packet));
                self.work(now, exit);
            }
            None => exit.down.push(packet),
        }
    }

    /// Takes a packet from the link's side.
    pub fn up(&mut self, now: Duration, packet: Packet, exit: &mut Out) {
        self.work.push_back((self.layers.len(), false, packet));
        self.work(now, exit);
    }

    /// Notes that a packet leaves the queue below.
    pub fn leaving(&mut self, now: Duration, packet: &Packet) {
        for layer in self.layers.iter_mut().filter(|layer| layer.is_on()) {
            layer.booster.leaving(now, packet);
        }
    }

    /// Handles due timers. A booster switched off since still completes what it has begun, but only
    /// if the far end can read it.
    pub fn on_time(&mut self, now: Duration, exit: &mut Out) {
        for index in 0..self.layers.len() {
            let layer = &mut self.layers[index];
            if layer.deadline().is_some_and(|at| at <= now) {
                layer.booster.on_time(now, &mut self.out);
                self.take(index);
                self.work(now, exit);
            }
        }
    }

    /// Returns the time of the next call of [`on_time`](Self::on_time).
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let layers = self.layers.iter();
        layers.filter_map(Layer::deadline).min()
    }

    /// Updates the known properties of the path.
    pub fn set_path(&mut self, now: Duration, path: &Path) {
        for layer in &mut self.layers {
            let was_on = layer.is_on();
            layer.supported = path.abilities & layer.needs == layer.needs;
            layer.switch.update(now, path);
            if layer.is_on() && !was_on {
                layer.booster.reset();
            }
            layer.booster.set_path(now, path);
        }
    }

    /// Discards the boosters' state of connections.
    pub fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.booster.reset();
        }
    }

    /// Reports each counter of each booster by name, `on` and `switched_on` included.
    pub fn counters(&self, each: &mut dyn FnMut(&'static str, &'static str, u64)) {
        for layer in &self.layers {
            each(layer.name, "on", layer.is_on().into());
            each(layer.name, "switched_on", layer.switch.switched_on);
            let mut named = |count, value| each(layer.name, count, value);
            layer.booster.counters(&mut named);
        }
    }

    /// Works until no packet is between two boosters. `work` holds the position of each packet:
    /// downward the next layer, upward the layer above which it goes.
    fn work(&mut self, now: Duration, exit: &mut Out) {
        while let Some((at, down, packet)) = self.work.pop_front() {
            if down && at == self.layers.len() {
                exit.down.push(packet);
            } else if !down && at == 0 {
                exit.up.push(packet);
            } else if down && !self.layers[at].is_on() {
                self.work.push_front((at + 1, true, packet));
            } else {
                let index = if down { at } else { at - 1 };
                let booster = &mut self.layers[index].booster;
                if down {
                    booster.down(now, packet, &mut self.out);
                } else {
                    booster.up(now, packet, &mut self.out);
                }
                self.take(index);
            }
        }
    }

    fn take(&mut self, index: usize) {
        for packet in self.out.down.drain(..) {
            self.work.push_back((index + 1, true, packet));
        }
        for packet in self.out.up.drain(..) {
            self.work.push_back((index, false, packet));
        }
    }
}

//! When a link is there by plan.

use std::{ops::Range, time::Duration};

use units::contacts::Plan;

/// Spans of Unix time in which a link is there, in order and apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contacts(Vec<Range<Duration>>);

impl Contacts {
    /// Those of a plan; `None` where it does not say from when its times count.
    pub fn new(plan: &Plan) -> Option<Self> {
        let reference = Duration::from_nanos(plan.reference()?);
        let at = |ns| reference + Duration::from_nanos(ns);
        let spans = plan.spans().map(|span| at(span.start)..at(span.end));
        Some(Self(spans.collect()))
    }

    /// Whether the link is there at that time; `None` behind the last span, where the plan has nothing to say: one that
    /// nobody has renewed must not cut off a network.
    pub fn at(&self, wall: Duration) -> Option<bool> {
        let span = self.0.iter().find(|span| wall < span.end)?;
        Some(span.contains(&wall))
    }

    /// When the plan says something else next, after that time.
    pub fn next(&self, wall: Duration) -> Option<Duration> {
        self.edges().find(|edge| *edge > wall)
    }

    /// When it last began to say what it says at that time.
    pub fn last(&self, wall: Duration) -> Option<Duration> {
        self.edges().take_while(|edge| *edge <= wall).last()
    }

    fn edges(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().flat_map(|span| [span.start, span.end])
    }
}

//! Contact plan of a link.

use std::{ops::Range, time::Duration};

use units::contacts::Plan;

/// Spans of Unix time in which a link is up, in order and disjoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contacts(Vec<Range<Duration>>);

impl Contacts {
    /// Returns the spans of a plan; `None` where the plan has no start time.
    pub fn new(plan: &Plan) -> Option<Self> {
        let reference = Duration::from_nanos(plan.reference()?);
        let at = |ns| reference + Duration::from_nanos(ns);
        let spans = plan.spans().map(|span| at(span.start)..at(span.end));
        Some(Self(spans.collect()))
    }

    /// Reports whether the link is up at that time. `None` after the last span: a plan that was not
    /// renewed must not cut off a network.
    pub fn at(&self, wall: Duration) -> Option<bool> {
        let span = self.0.iter().find(|span| wall < span.end)?;
        Some(span.contains(&wall))
    }

    /// Time of the next change of the plan.
    pub fn next(&self, wall: Duration) -> Option<Duration> {
        self.edges().find(|edge| *edge > wall)
    }

    /// Time of the last change of the plan.
    pub fn last(&self, wall: Duration) -> Option<Duration> {
        self.edges().take_while(|edge| *edge <= wall).last()
    }

    fn edges(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().flat_map(|span| [span.start, span.end])
    }
}

//! Far end of the flow under test: reports of arrivals.

use std::collections::VecDeque;

use tunnel::wire::Gap;
use winkemu_link::Nanos;

/// A report, reduced to the data for rates and causes.
#[derive(Clone, Debug)]
pub struct Report {
    pub number: u64,
    pub arrived: Nanos,
    pub made: Nanos,
    pub packets: u64,
    pub bytes: u64,
    pub gaps: Vec<Gap>,
}

/// Receiver that reports each `spacing`, and at once after a silence.
pub struct Receiver {
    spacing: Nanos,
    reported: Option<Nanos>,
    news: bool,
    highest: Option<(u64, Nanos)>,
    packets: u64,
    bytes: u64,
    gaps: VecDeque<Gap>,
}

impl Receiver {
    pub fn new(spacing: Nanos) -> Self {
        Self {
            spacing,
            reported: None,
            news: false,
            highest: None,
            packets: 0,
            bytes: 0,
            gaps: VecDeque::new(),
        }
    }

    pub fn on_packet(&mut self, now: Nanos, number: u64, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
        self.news = true;
        let Some((before, at)) = self.highest else {
            self.highest = Some((number, now));
            return;
        };
        if number <= before {
            return;
        }
        if number > before + 1 {
            self.gaps.push_back(Gap {
                before,
                missing: number - before - 1,
                before_us: at / 1000,
                after_us: now / 1000,
            });
            while self.gaps.len() > 16 {
                self.gaps.pop_front();
            }
        }
        self.highest = Some((number, now));
    }

    pub fn deadline(&self) -> Option<Nanos> {
        let due = self.reported.map_or(0, |at| at + self.spacing);
        self.news.then_some(due)
    }

    pub fn poll(&mut self, now: Nanos) -> Option<Report> {
        self.deadline().filter(|due| *due <= now)?;
        let (number, arrived) = self.highest?;
        self.reported = Some(now);
        self.news = false;
        Some(Report {
            number,
            arrived,
            made: now,
            packets: self.packets,
            bytes: self.bytes,
            gaps: self.gaps.iter().copied().collect(),
        })
    }
}

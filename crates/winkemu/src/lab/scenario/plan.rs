//! Runs of a scenario.

use std::fmt;

use super::{NodeSettings, Scenario, Variant};
use crate::link::LinkOptions;

/// Value of an axis of the matrix, and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// Option of a link.
    Link {
        /// Name of the link.
        link: String,
        /// Option.
        option: String,
        /// Value.
        value: String,
    },
    /// Congestion control of a node.
    Congestion {
        /// Name of the node.
        node: String,
        /// Congestion control.
        value: String,
    },
}

impl Setting {
    /// Value without its target.
    pub fn value(&self) -> &str {
        match self {
            Self::Link { value, .. } | Self::Congestion { value, .. } => value,
        }
    }
}

/// One run: a topology, a variant, a point of the matrix, a seed, and the workloads of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSpec {
    /// Index of the variant.
    pub variant: usize,
    /// Index of the group of workloads.
    pub group: usize,
    /// Index of the value of each axis.
    pub point: Vec<usize>,
    /// Seed of the links.
    pub seed: u64,
}

/// Last part of a matrix key, for axes: `link.loss` becomes `loss`.
pub fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

impl Scenario {
    /// All runs. Runs to be compared are adjacent, so that they meet the same conditions.
    pub fn runs(&self) -> Vec<RunSpec> {
        let mut runs = Vec::new();
        for &seed in &self.seeds {
            for point in self.points() {
                for group in 0..self.groups.len() {
                    for variant in 0..self.variants.len() {
                        runs.push(RunSpec {
                            variant,
                            group,
                            point: point.clone(),
                            seed,
                        });
                    }
                }
            }
        }
        runs
    }

    /// All points of the matrix; one point without axes if there is no matrix.
    pub fn points(&self) -> Vec<Vec<usize>> {
        self.matrix.iter().fold(vec![Vec::new()], |points, axis| {
            let extend = |point: &Vec<usize>| {
                let point = point.clone();
                (0..axis.values.len()).map(move |value| [point.clone(), vec![value]].concat())
            };
            points.iter().flat_map(extend).collect()
        })
    }

    /// Keys and values of a point.
    pub fn settings<'a>(
        &'a self,
        point: &'a [usize],
    ) -> impl Iterator<Item = (&'a str, &'a Setting)> {
        self.matrix
            .iter()
            .zip(point)
            .map(|(axis, &value)| (&*axis.key, &axis.values[value]))
    }

    /// Words for a value of the matrix: its label, or `loss 1%`.
    pub fn words(&self, key: &str, value: &Setting) -> String {
        let labels = self.labels.iter();
        let mut label = labels
            .filter(|(of, _)| of == value.value())
            .map(|(_, label)| label);
        let plain = || format!("{} {}", short(key), value.value());
        label.next().cloned().unwrap_or_else(plain)
    }

    /// Variant of a run.
    pub fn variant(&self, run: &RunSpec) -> &Variant {
        &self.variants[run.variant]
    }

    /// Options of a link in a run.
    ///
    /// # Panics
    /// A link that is not in the path.
    pub fn link_options(&self, run: &RunSpec, name: &str) -> LinkOptions {
        let link = self.links.iter().find(|(link, _)| link == name);
        let (_, mut options) = link
            .expect("checked: each link of the path is described")
            .clone();
        for (_, setting) in self.settings(&run.point) {
            if let Setting::Link {
                link,
                option,
                value,
            } = setting
                && link == name
            {
                let value = toml::Value::String(value.clone());
                super::links::set(&mut options, option, &value).expect("checked when read");
            }
        }
        options
    }

    /// Settings of a node in a run: those of the scenario, then of the variant, then of the matrix.
    pub fn node_settings(&self, run: &RunSpec, node: &str) -> NodeSettings {
        let mut settings = NodeSettings {
            node: node.to_owned(),
            ..NodeSettings::default()
        };
        let layers = self.nodes.iter().chain(&self.variant(run).nodes);
        for layer in layers.filter(|layer| layer.node == node) {
            settings.congestion = layer.congestion.clone().or(settings.congestion);
            settings.pacing = layer.pacing.or(settings.pacing);
            settings.quic = layer.quic.or(settings.quic);
            settings.sysctls.extend(layer.sysctls.iter().cloned());
        }
        for (_, setting) in self.settings(&run.point) {
            match setting {
                Setting::Congestion { node: of, value } if of == node => {
                    settings.congestion = Some(value.clone());
                }
                _ => {}
            }
        }
        settings
    }

    /// Describes a run in words, such as `pepd bbr, upload, link.loss 1%, seed 3`.
    pub fn describe(&self, run: &RunSpec) -> String {
        let point = PointText(self, &run.point);
        let (variant, group) = (
            &self.variants[run.variant].name,
            &self.groups[run.group].name,
        );
        format!("{variant}, {group}{point}, seed {}", run.seed)
    }
}

struct PointText<'a>(&'a Scenario, &'a [usize]);

impl fmt::Display for PointText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(scenario, point) = self;
        scenario
            .settings(point)
            .try_for_each(|(key, value)| write!(f, ", {key} {}", value.value()))
    }
}

//! Congestion controls: those of this machine, the choice for each leg, and loading pepd's own.
//!
//! - [`catalogue`], a read-only view of the available controls
//! - [`about`], descriptions
//! - [`listing`], the table for `pepd cc list`
//! - [`controls`], the controls of the sites, loaded and held

pub mod about;
pub mod catalogue;
pub mod controls;
pub mod listing;

pub use catalogue::{Catalogue, Means, WhyNot};
pub use controls::{ControlTerms, Controls, ControlsError};

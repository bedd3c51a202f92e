//! Congestion controls: which there are on this machine, which one a leg gets, and loading our own.
//!
//! - [`catalogue`], what there is, without changing anything
//! - [`about`], what each is
//! - [`listing`], all of it, to be printed
//! - [`controls`], those that the sites get, loaded and held
//! - [`privileges`], giving up what only loading needs

pub mod about;
pub mod catalogue;
pub mod controls;
pub mod listing;
pub mod privileges;

pub use catalogue::{Catalogue, Means, WhyNot};
pub use controls::{Controls, ControlsError, Rtt0};

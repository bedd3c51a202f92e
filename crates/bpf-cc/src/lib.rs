//! Congestion controls for lossy long-delay links, as eBPF programs for the running kernel.
//!
//! The sources are in `bpf/`, the objects built from them in `objects/`: neither a build nor a run
//! of this crate needs clang. [`Loaded::load`] registers controls with the kernel, which drops them
//! when the [`Loaded`] is dropped or its process ends. Sockets that use a control keep it.
//!
//! Programs need Linux 6.1. Before Linux 6.4 the kernel does not notice the end of a process: one
//! that ends without dropping the [`Loaded`] calls [`Loaded::unregister`] first. Controls of a
//! killed process are removed before the next registration, or by [`remove_leftovers`].
//!
//! ```no_run
//! use bpf_cc::{Control, Loaded};
//!
//! let loaded = Loaded::load(&[Control::HyblaSat])?;
//! let name = loaded.name_of(Control::HyblaSat).expect("hybla_sat was loaded");
//! // setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name)
//! # Ok::<(), bpf_cc::LoadError>(())
//! ```

mod control;
mod error;
pub mod kernel;
mod leftovers;
mod load;
mod requirements;

pub use control::{Control, UnknownControl};
pub use error::{LoadError, Missing};
pub use leftovers::{remove_left_by, remove_leftovers};
pub use load::{Loaded, RTT0_DEFAULT, SocketTerms, free_name};
pub use requirements::{check as check_requirements, missing_capabilities};

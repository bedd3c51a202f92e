//! The behaviour of pepd as hosts see it, in namespaces, with the plain network as the control.
//!
//!     cargo test -p pepd-tests
//!
//! needs root and the packages of `scripts/install-deps`; it builds the daemon itself. In a failing
//! test the case (`defer ipv6`) is the name of the thread that panicked.

mod addresses;
mod bed;
mod capture;
mod carriers;
mod change;
mod chaos;
mod check;
mod churn;
mod classes;
mod clear;
mod clock;
mod compression;
mod congestion;
mod custody;
mod diagnose;
mod elsewhere;
mod ending;
mod filtered;
mod firewall;
mod forged;
mod forward;
mod handshake;
mod hanging;
mod hops;
mod hostile;
mod interop;
mod iptables;
mod kernels;
mod lab;
mod limits;
mod listening;
mod loads;
mod midway;
mod names;
mod observing;
mod old_nft;
mod orders;
mod other_kernel;
mod outages;
mod packets;
mod page;
mod privileges;
mod probing;
mod programs;
mod qlog;
mod reach;
mod recipes;
mod relay;
mod scarce;
mod secrets;
mod service;
mod several;
mod sharing;
mod sites;
mod support;
mod survive;
mod survive_disk;
mod survive_tunnel;
mod switches;
mod threads;
mod timeouts;
mod top;
mod trace;
mod tunnel;
mod unsendable;
mod upkeep;

//! TUN devices of sites in mode `packet`: what goes in is carried to the peer, what comes out has come from there.

use std::io;

use pep_core::{config::Config, site::SiteId};

use super::tun::Tun;
use crate::sys;

/// A site in mode `packet`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketSite {
    /// Which one.
    pub site: SiteId,
    /// Its number among all TUNs, by which it has its mark and its routing table.
    pub number: usize,
    /// The name of its TUN.
    pub tun: String,
    /// TCP is to offer segments that fit.
    pub clamps: bool,
}

/// The TUN of a site.
#[derive(Debug)]
pub struct PacketTun {
    /// Which one.
    pub site: SiteId,
    /// The device.
    pub tun: Tun,
}

/// The sites of a configuration in mode `packet`. Their TUNs are numbered behind those of LAN interfaces, and named by the table's name and a
/// number, within the 15 characters of an interface's name.
pub fn sites(config: &Config) -> Vec<PacketSite> {
    let table = config.intercept.table.as_str();
    let prefix = &table[..table.len().min(11)];
    let lans = config.intercept.lan.len();
    let sites = config.packet_sites().enumerate();
    let numbered = sites.map(|(index, site)| PacketSite {
        site: site.id,
        number: lans + index,
        tun: format!("{prefix}-p{index}"),
        clamps: site.policy.mss_clamp,
    });
    numbered.collect()
}

/// Lets the device take packets of so many bytes.
///
/// # Errors
/// When the device is gone.
pub fn set_mtu(tun: &Tun, mtu: usize) -> io::Result<()> {
    sys::tun::set_mtu(tun.name(), mtu.try_into().unwrap_or(i32::MAX))
}

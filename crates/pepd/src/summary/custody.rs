//! Custody during link outages, and the detection of outages.

use std::fmt;

use pep_core::{
    config::{AdminMode, OtherRoutes},
    site::{Close, InterceptionLoss, KeepWhen, Mode, Site, WhileDown},
};
use pepd_sys::admin_socket;
use units::{ByteSize, duration};

use super::{Summary, detail, line};

impl Summary<'_> {
    /// Describes the sources of link state besides its interface and tunnels.
    pub(super) fn link_watch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(link) = &self.config.link else {
            return Ok(());
        };
        let shared = if link.dedicated {
            "dedicated"
        } else {
            "shared with other traffic (`dedicated = false`)"
        };
        let other_routes = match link.other_routes {
            OtherRoutes::Pass => "passes unaccelerated",
            OtherRoutes::Split => "is split as well",
        };
        let text = format!("{shared}; traffic routed by another interface {other_routes}");
        line(f, "", &text)?;
        if self.config.shares_link() {
            let counted = match self.config.counted_interface() {
                Some(_) => "other traffic by this interface reduces the shares of flows (`share`)",
                None => {
                    "other traffic does not reduce the shares of flows: hosts are behind this interface, too"
                }
            };
            line(f, "", &counted)?;
        }
        if let Some(gateway) = link.gateway {
            let every = duration::format(link.gateway_every);
            line(f, "", &format!("gateway {gateway}, probed every {every}"))?;
        }
        if let Some(contacts) = &link.contacts {
            line(f, "", &format!("contact plan {}", contacts.display()))?;
        }
        Ok(())
    }

    pub(super) fn custody(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let custody = &self.config.custody;
        let survival = match (custody.survive, self.survives) {
            (false, _) => "flows end with pepd's process (`survive = false`)",
            (true, Some(true)) => "flows survive the end of pepd's process (`survive = true`)",
            (true, Some(false)) => {
                "flows end with pepd's process: this machine does not permit a takeover"
            }
            (true, None) => {
                "flows survive the end of pepd's process if the machine permits a takeover"
            }
        };
        line(f, "custody", &survival)?;
        if self.config.peers.is_empty() {
            return line(
                f,
                "",
                &"split flows hold at most their ring buffers, and the kernel's socket buffers",
            );
        }
        let directory = custody.directory.as_ref().map(|directory| {
            let state = self.directory.as_ref();
            let state = state.map_or(String::new(), |state| format!(" ({state})"));
            format!("{} on disk in {}{state}", custody.disk, directory.display())
        });
        let directory = directory.unwrap_or("none on disk".to_owned());
        let hold = duration::format(custody.hold);
        let held = format!(
            "tunnels hold at most {} in memory, {directory}, for up to {hold}",
            custody.memory
        );
        line(f, "", &held)
    }

    pub(super) fn admin(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.admin_socket(f)?;
        let Some(address) = self.config.admin.http else {
            return Ok(());
        };
        let http = format!("http://{address}, read-only, for all users of this machine");
        line(f, "", &http)
    }

    fn admin_socket(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(path) = admin_socket::path(self.config) else {
            return line(f, "admin", &"no socket");
        };
        let mode = self.config.admin.mode;
        let who = match mode {
            AdminMode::Owner => "pepd's user",
            AdminMode::Group => "pepd's user and group",
        };
        let (path, bits) = (path.display(), mode.bits());
        line(f, "admin", &format!("{path}, for {who} (0{bits:03o})"))
    }

    /// Describes the handling of a site's flows while the link is down.
    pub(super) fn while_down_text(&self, f: &mut fmt::Formatter<'_>, site: &Site) -> fmt::Result {
        let fresh = match site.while_down {
            WhileDown::Custody => "new flows wait until it is up",
            WhileDown::Refuse => "new flows are reset at once",
            WhileDown::Bypass => "new flows are forwarded by the kernel",
        };
        detail(f, "link down", &fresh)?;
        let lost = match (site.on_interception_loss, site.mode) {
            (InterceptionLoss::Pass, Mode::Tunnel) => {
                "new flows pass unaccelerated outside the tunnel"
            }
            (InterceptionLoss::Pass, _) => "new flows pass unaccelerated",
            (InterceptionLoss::Block, _) => "new flows are blocked",
        };
        detail(
            f,
            "redirection",
            &format!("if another program drops redirected packets, {lost}"),
        )?;
        if site.mode != Mode::Tunnel {
            return Ok(());
        }
        let when = match site.custody {
            KeepWhen::Never => "no custody",
            KeepWhen::Outage => "data, while the link is down",
            KeepWhen::Always => "data, at all times",
        };
        let disk = site
            .disk
            .filter(|_| self.config.custody.directory.is_some());
        let disk = disk.map_or(String::new(), |disk: ByteSize| format!(", {disk} on disk"));
        let close = match site.close {
            Close::Confirmed => "a client's FIN is acknowledged when the server has all data",
            Close::Early => "a client's FIN is acknowledged at once while the link is down",
        };
        let hold = duration::format(site.hold);
        let kept = format!("{when}, for up to {hold}{disk}; {close}");
        detail(f, "held", &kept)
    }
}

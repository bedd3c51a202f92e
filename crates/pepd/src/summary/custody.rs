//! What is held while the link is away, and who says that it is.

use std::fmt;

use pep_core::{
    config::{AdminMode, OtherRoutes},
    site::{Close, InterceptionLoss, KeepWhen, Mode, Site, WhileDown},
};
use pepd_sys::admin_socket;
use units::{ByteSize, duration};

use super::{Summary, detail, line};

impl Summary<'_> {
    /// Who is asked whether the link is there, besides its interface and tunnels.
    pub(super) fn link_watch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(link) = &self.config.link else {
            return Ok(());
        };
        let shared = if link.dedicated {
            "dedicated"
        } else {
            "shared with others"
        };
        let other_routes = match link.other_routes {
            OtherRoutes::Pass => "passes unaccelerated",
            OtherRoutes::Split => "is split, too",
        };
        let text = format!("{shared}; what is routed by another interface {other_routes}");
        line(f, "", &text)?;
        if let Some(gateway) = link.gateway {
            let every = duration::format(link.gateway_every);
            line(f, "", &format!("gateway {gateway}, asked every {every}"))?;
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
            (true, Some(true)) => "flows outlive pepd's process",
            (true, Some(false)) => {
                "flows end with pepd's process, as this machine does not let another one take them over"
            }
            (true, None) => "flows outlive pepd's process where the machine allows it",
        };
        line(f, "custody", &survival)?;
        if self.config.peers.is_empty() {
            return line(f, "", &"flows that are split hold what their rings take");
        }
        let directory = custody.directory.as_ref().map(|directory| {
            let state = self.directory.as_ref();
            let state = state.map_or(String::new(), |state| format!(" ({state})"));
            format!("{} on disk in {}{state}", custody.disk, directory.display())
        });
        let directory = directory.unwrap_or("none on disk".to_owned());
        let hold = duration::format(custody.hold);
        let held = format!(
            "tunnels hold {} in memory, {directory}, for up to {hold}",
            custody.memory
        );
        line(f, "", &held)
    }

    pub(super) fn admin(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.admin_socket(f)?;
        let Some(address) = self.config.admin.http else {
            return Ok(());
        };
        let http = format!("http://{address}, for all users of this machine, reading only");
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

    /// What becomes of a site's flows while the link is away.
    pub(super) fn while_down_text(&self, f: &mut fmt::Formatter<'_>, site: &Site) -> fmt::Result {
        let fresh = match site.while_down {
            WhileDown::Custody => "new flows wait",
            WhileDown::Refuse => "new flows are reset at once",
            WhileDown::Bypass => "new flows are forwarded by the kernel",
        };
        detail(f, "link away", &fresh)?;
        let lost = match (site.on_interception_loss, site.mode) {
            (InterceptionLoss::Pass, Mode::Tunnel) => "new flows pass outside of the tunnel",
            (InterceptionLoss::Pass, _) => "new flows pass unaccelerated",
            (InterceptionLoss::Block, _) => "new flows are blocked",
        };
        detail(f, "redirection", &format!("where it fails, {lost}"))?;
        if site.mode != Mode::Tunnel {
            return Ok(());
        }
        let when = match site.custody {
            KeepWhen::Never => "nothing more than is sent at once",
            KeepWhen::Outage => "while the link is away",
            KeepWhen::Always => "at all times",
        };
        let disk = site
            .disk
            .filter(|_| self.config.custody.directory.is_some());
        let disk = disk.map_or(String::new(), |disk: ByteSize| format!(", {disk} on disk"));
        let close = match site.close {
            Close::Confirmed => "a client's end answered when the server has everything",
            Close::Early => "a client's end answered at once while the link is away",
        };
        let hold = duration::format(site.hold);
        let kept = format!("{when}, for up to {hold}{disk}; {close}");
        detail(f, "held", &kept)
    }
}

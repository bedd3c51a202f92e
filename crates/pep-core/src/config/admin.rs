//! `[admin]`: how a running pepd is asked and told.

use std::path::{Path, PathBuf};

use super::{
    raw::Section,
    values::{Map, NonEmpty, OneOf},
};

/// `[admin]`: how a running pepd is asked and told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admin {
    /// Its socket. Default [`AdminSocket::Auto`]: it costs one descriptor, and only who may use it can.
    pub socket: AdminSocket,
    /// Who may use it. Default [`AdminMode::Owner`].
    pub mode: AdminMode,
}

/// Where the socket is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AdminSocket {
    /// In the folder that systemd made for us (`RuntimeDirectory=`), or else in `/run/pepd`, named after
    /// `intercept.table`.
    #[default]
    Auto,
    /// Here.
    Path(PathBuf),
    /// There is none.
    Off,
}

/// Who may use the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdminMode {
    /// The user that pepd runs as (0600).
    #[default]
    Owner,
    /// Its group too (0660).
    Group,
}

impl AdminMode {
    /// As a file has it.
    pub fn bits(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
        }
    }
}

impl Admin {
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let expected = "\"auto\", \"off\", or the path of a socket";
        let words = Map(NonEmpty(expected), |text: String| match text.as_str() {
            "auto" => AdminSocket::Auto,
            "off" => AdminSocket::Off,
            _ => AdminSocket::Path(text.into()),
        });
        let modes = OneOf(&[("0600", AdminMode::Owner), ("0660", AdminMode::Group)]);
        let admin = Self {
            socket: section.read("socket", words).unwrap_or_default(),
            mode: section.read("mode", modes).unwrap_or_default(),
        };
        section.finish();
        admin
    }

    /// Takes its path for relative to `folder`, where it is relative.
    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        if let AdminSocket::Path(path) = &mut self.socket {
            *path = folder.join(&*path);
        }
    }
}

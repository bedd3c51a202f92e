//! Texts of configurations: the worker's present one, the previous one, and the next one.
//!
//! The file is read on request, and at no other time. A rejected text, or one that the operator has
//! not yet requested, must not take effect by a crash.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use pep_core::config::Config;
use pepd_relay::survive::inherited_text::InheritedText;
use pepd_sys::load::{self, Loaded, Source};

use super::worker::TEXT;

/// Option that passes an upgraded program the configuration to revert to.
pub(super) const BEFORE: &str = "--before";

/// Texts of configurations.
#[derive(Debug)]
pub(super) struct Texts {
    config: Config,
    now: Source,
    /// Configuration to revert to, until the worker with the present one is up.
    before: Option<Source>,
    /// Configuration of the program that replaces this one.
    next: Option<Source>,
    /// True after a reversion to the previous configuration.
    pub reverted: bool,
}

impl Texts {
    pub(super) fn new(loaded: Loaded, before: Option<Source>) -> Self {
        Self {
            config: loaded.config,
            now: loaded.source,
            before,
            next: None,
            reverted: false,
        }
    }

    /// Returns the worker's configuration.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns its text.
    pub(super) fn text(&self) -> &str {
        &self.now.text
    }

    /// Records that the worker with the present one is up.
    pub(super) fn settle(&mut self) {
        self.before = None;
    }

    /// Reverts to the previous configuration. Returns false without one.
    pub(super) fn revert(&mut self) -> bool {
        let Some(before) = self.before.take() else {
            return false;
        };
        match before.load_fitted() {
            Ok(Loaded { config, source, .. }) => {
                (self.config, self.now, self.reverted) = (config, source, true);
                true
            }
            Err(err) => {
                tracing::error!("{err}");
                false
            }
        }
    }

    /// Reads the file, and has the new program check it.
    pub(super) fn offer(&mut self, program: &Path) -> Result<(), String> {
        let next = load::read(&self.now.path).map_err(|err| err.to_string())?;
        let program_name = program.display();
        let cannot = |err: io::Error| format!("cannot run {program_name}: {err}");
        let text = InheritedText::new(&next.text).map_err(cannot)?;
        let mut command = Command::new(program);
        command.arg("check").arg("--config").arg(&next.path);
        command.args([TEXT, &text.number()]).stdout(Stdio::null());
        let status = command.status().map_err(cannot)?;
        if !status.success() {
            return Err(format!(
                "{program_name} rejects the configuration ({status})"
            ));
        }
        self.next = Some(next);
        Ok(())
    }

    /// Passes the offered configuration, and the one to revert to, to a command that replaces this
    /// process. The result must be kept until it runs.
    pub(super) fn hand_on(&self, command: &mut Command) -> io::Result<[InheritedText; 2]> {
        let next = self.next.as_ref().unwrap_or(&self.now);
        // The present one has not yet started successfully.
        let before = self.before.as_ref().unwrap_or(&self.now);
        let texts = [
            InheritedText::new(&next.text)?,
            InheritedText::new(&before.text)?,
        ];
        for (flag, text) in [TEXT, BEFORE].iter().zip(&texts) {
            command.args([*flag, &text.number()]);
        }
        Ok(texts)
    }
}

//! Which configuration the process that carries flows has, which one it had, and which one is to come.
//!
//! The file is read when somebody asks for it, and at no other time: what was refused, or nobody has asked for yet,
//! is not to take effect by a crash.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

use pep_core::config::Config;
use pepd_relay::survive::inherited_text::InheritedText;
use pepd_sys::load::{self, Loaded, Source};

use super::worker::TEXT;

/// Tells a program that replaces us what to go back to.
pub(super) const BEFORE: &str = "--before";

/// Texts of configurations.
#[derive(Debug)]
pub(super) struct Texts {
    config: Config,
    now: Source,
    /// What to go back to, until the process with the present one is up.
    before: Option<Source>,
    /// That of the program which is to replace us.
    next: Option<Source>,
    /// The present one is the one before.
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

    /// What the process that carries flows has.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The same as it was written.
    pub(super) fn text(&self) -> &str {
        &self.now.text
    }

    /// The process with the present one is up.
    pub(super) fn settle(&mut self) {
        self.before = None;
    }

    /// Goes back to the one before. Whether there was one.
    pub(super) fn revert(&mut self) -> bool {
        let Some(before) = self.before.take() else {
            return false;
        };
        match before.load_alone() {
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

    /// Reads the file, and lets the program that is to replace us check what was read.
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
                "{program_name} does not take the configuration ({status})"
            ));
        }
        self.next = Some(next);
        Ok(())
    }

    /// What was offered, and what to go back to, for a command that replaces us: to be kept until it runs.
    pub(super) fn hand_on(&self, command: &mut Command) -> io::Result<[InheritedText; 2]> {
        let next = self.next.as_ref().unwrap_or(&self.now);
        // The present one has not shown yet that it can be put in place.
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

//! The congestion controls available on this machine, and their sources.

use std::{cell::OnceCell, fmt, io};

use bpf_cc::{Control, LoadError, check_requirements, kernel};
use pep_core::config::{CongestionName, closest};
use socket2::{Domain, Socket, Type};

/// The source of a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Built into the kernel, or a loaded module.
    Kernel,
    /// A kernel module that is not loaded yet.
    Module,
    /// An eBPF program that pepd loads.
    Program(Control),
    /// A program of another process, which disappears when that process ends.
    OtherProcess,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Module => "kernel module",
            Self::Program(_) => "eBPF of pepd",
            Self::OtherProcess => "eBPF of another process",
        })
    }
}

/// The reason why a control is not available.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WhyNot {
    /// No control has this name; possibly a typo.
    #[error("`{name}` is not known{}", meant.as_ref().map_or(String::new(), |name| format!(" (did you mean `{name}`?)")))]
    Unknown {
        /// The requested name.
        name: String,
        /// The closest known name.
        meant: Option<String>,
    },
    /// A control of pepd that cannot be loaded.
    #[error("`{control}`: {err}")]
    Program {
        /// The control.
        control: Control,
        /// The reason.
        err: LoadError,
    },
    /// The kernel has the control and does not permit its use.
    #[error("`{name}`: the kernel refuses it: {reason}")]
    Refused {
        /// The control's name.
        name: String,
        /// The kernel's error.
        reason: String,
    },
}

impl WhyNot {
    /// Returns one line for `pepd run`, `check` and `reload` alike: `chosen` is used, and why.
    pub fn instead(&self, chosen: &CongestionName) -> String {
        let (name, why) = match self {
            Self::Unknown { name, meant } => {
                let meant = meant.as_ref();
                let meant = meant.map_or(String::new(), |name| format!(" (did you mean {name}?)"));
                (
                    name.as_str(),
                    format!("neither the kernel nor pepd has it{meant}"),
                )
            }
            Self::Program { control, err } => (control.name(), err.to_string()),
            Self::Refused { name, reason } => {
                (name.as_str(), format!("the kernel refuses it: {reason}"))
            }
        };
        format!("congestion control {name} is not available, using {chosen} instead: {why}")
    }
}

/// A control that sockets can choose now.
#[derive(Debug, Clone)]
struct Registered {
    name: String,
    /// Computed on demand: the check may search all of the kernel's symbols.
    native: OnceCell<bool>,
}

impl Registered {
    fn is_native(&self) -> bool {
        *self.native.get_or_init(|| kernel::is_native(&self.name))
    }
}

/// The congestion controls of this machine; queries change nothing.
#[derive(Debug, Clone)]
pub struct Catalogue {
    registered: Vec<Registered>,
    default: String,
    /// Modules, loaded or not; `None` where they cannot be listed.
    modules: Option<Vec<String>>,
    /// The reason why this process cannot load programs.
    obstacle: Option<LoadError>,
}

/// The result of a search through a list of controls.
#[derive(Debug)]
pub struct Choice<'a> {
    /// The first available control; `None` if none is.
    pub chosen: Option<(&'a CongestionName, Means)>,
    /// Unavailable controls before it.
    pub passed_over: Vec<WhyNot>,
}

impl Catalogue {
    /// Reads the kernel's state.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn of_machine() -> io::Result<Self> {
        let registered = kernel::available()?.into_iter().map(|name| Registered {
            name,
            native: OnceCell::new(),
        });
        Ok(Self {
            registered: registered.collect(),
            default: kernel::default()?,
            modules: kernel::modules(),
            obstacle: check_requirements().err(),
        })
    }

    /// Returns the kernel's default control.
    pub fn default(&self) -> &str {
        &self.default
    }

    /// Returns the controls that sockets can choose now.
    pub fn registered(&self) -> impl Iterator<Item = &str> {
        self.registered.iter().map(|found| found.name.as_str())
    }

    /// Returns the registered controls that are the kernel's own.
    pub(crate) fn native(&self) -> impl Iterator<Item = &str> {
        let native = self.registered.iter().filter(|found| found.is_native());
        native.map(|found| found.name.as_str())
    }

    /// Returns the controls with modules that are not loaded.
    pub(crate) fn unloaded_modules(&self) -> impl Iterator<Item = &str> {
        let names = self.modules.iter().flatten().map(String::as_str);
        names.filter(|name| self.find(name).is_none())
    }

    /// Returns the reason why this process cannot load programs, if so.
    pub(crate) fn obstacle(&self) -> Option<&LoadError> {
        self.obstacle.as_ref()
    }

    /// Returns the source of a control, for a process with the privileges.
    ///
    /// # Errors
    /// The reason why it is not available.
    pub fn means(&self, name: &str) -> Result<Means, WhyNot> {
        let registered = self.find(name);
        if registered.is_some_and(Registered::is_native) {
            return Ok(Means::Kernel);
        }
        if registered.is_none() && self.has_module(name) {
            return Ok(Means::Module);
        }
        match (name.parse(), &self.obstacle) {
            // Another process may have the missing capabilities.
            (Ok(control), None | Some(LoadError::Capabilities(_))) => Ok(Means::Program(control)),
            (Ok(control), Some(err)) => Err(WhyNot::Program {
                control,
                err: err.clone(),
            }),
            (Err(_), _) if registered.is_some() => Ok(Means::OtherProcess),
            (Err(_), _) => Err(self.unknown(name)),
        }
    }

    /// Returns the first available control of a list.
    pub fn choose<'a>(&self, wanted: &'a [CongestionName]) -> Choice<'a> {
        let mut passed_over = Vec::new();
        let chosen = wanted.iter().find_map(|name| {
            let means = self.means(name.as_str());
            means.map_or_else(
                |why| {
                    passed_over.push(why);
                    None
                },
                |means| Some((name, means)),
            )
        });
        Choice {
            chosen,
            passed_over,
        }
    }

    /// Returns a list of the available controls, for messages.
    pub(crate) fn inventory(&self) -> String {
        let kernel: Vec<_> = self.native().chain(self.unloaded_modules()).collect();
        let ours = Control::names().join(", ");
        format!("the kernel has {}; pepd has {ours}", kernel.join(", "))
    }

    /// Returns the reason why no control of a list is available, in one line.
    pub fn explain(&self, passed_over: &[WhyNot]) -> String {
        let why: Vec<_> = passed_over.iter().map(ToString::to_string).collect();
        let is_unknown = |why: &WhyNot| matches!(why, WhyNot::Unknown { .. });
        if passed_over.iter().any(is_unknown) {
            format!("{}; {}", why.join("; "), self.inventory())
        } else {
            why.join("; ")
        }
    }

    fn find(&self, name: &str) -> Option<&Registered> {
        self.registered.iter().find(|found| found.name == name)
    }

    /// Returns whether a module for the control exists. Without a list of modules the only test is
    /// to request the control, which loads its module.
    fn has_module(&self, name: &str) -> bool {
        match &self.modules {
            Some(modules) => modules.iter().any(|module| module == name),
            None => asks_in_vain(name).is_none() && kernel::is_native(name),
        }
    }

    fn unknown(&self, name: &str) -> WhyNot {
        let known = self
            .registered()
            .chain(self.unloaded_modules())
            .chain(Control::names());
        WhyNot::Unknown {
            name: name.to_owned(),
            meant: closest(name, known).map(str::to_owned),
        }
    }
}

/// Returns the kernel's error for a socket that requests this control; `None` on success.
pub(super) fn asks_in_vain(name: &str) -> Option<io::Error> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    let asked = socket.and_then(|socket| socket.set_tcp_congestion(name.as_bytes()));
    asked.err()
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
pub(super) mod tests;

//! What congestion controls there are, and how each can be had.

use std::{cell::OnceCell, fmt, io};

use bpf_cc::{Control, LoadError, check_requirements, kernel};
use pep_core::config::{CongestionName, closest};
use socket2::{Domain, Socket, Type};

/// How a control can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The kernel has it.
    Kernel,
    /// The kernel has a module for it, which it loads when asked.
    Module,
    /// pepd loads it, as an eBPF program.
    Program(Control),
    /// It is registered, but not the kernel's: a program of another process, with which it will be
    /// gone.
    Foreign,
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "kernel",
            Self::Module => "kernel module",
            Self::Program(_) => "eBPF of pepd",
            Self::Foreign => "eBPF of another process",
        })
    }
}

/// Why a control cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WhyNot {
    /// Nobody has one of this name; perhaps another was meant.
    #[error("`{name}` is not known{}", meant.as_ref().map_or(String::new(), |name| format!(" (did you mean `{name}`?)")))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What is like it.
        meant: Option<String>,
    },
    /// It is ours, but cannot be loaded.
    #[error("`{control}`: {err}")]
    Program {
        /// Which one.
        control: Control,
        /// Why not.
        err: LoadError,
    },
    /// The kernel has it and does not let us use it.
    #[error("`{name}`: the kernel refuses it: {reason}")]
    Refused {
        /// Which one.
        name: String,
        /// What the kernel says.
        reason: String,
    },
}

impl WhyNot {
    /// One line for `pepd run`, `check` and `reload` alike: `chosen` is used, and why.
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

/// One that sockets can choose now.
#[derive(Debug, Clone)]
struct Registered {
    name: String,
    /// Asked for when it is needed: the answer may take a search through all of the kernel's symbols.
    native: OnceCell<bool>,
}

impl Registered {
    fn is_native(&self) -> bool {
        *self.native.get_or_init(|| kernel::is_native(&self.name))
    }
}

/// What this machine has. Asking it changes nothing.
#[derive(Debug, Clone)]
pub struct Catalogue {
    registered: Vec<Registered>,
    default: String,
    /// Loaded or not; `None` where it cannot be told.
    modules: Option<Vec<String>>,
    /// Why this process cannot load programs.
    obstacle: Option<LoadError>,
}

/// What a list of controls comes to.
#[derive(Debug)]
pub struct Choice<'a> {
    /// The one to use; `None` if none of them can be had.
    pub chosen: Option<(&'a CongestionName, Means)>,
    /// Those before it.
    pub passed_over: Vec<WhyNot>,
}

impl Catalogue {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When /proc is not there.
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

    /// The one of sockets that ask for none.
    pub fn default(&self) -> &str {
        &self.default
    }

    /// Those that sockets can choose now.
    pub fn registered(&self) -> impl Iterator<Item = &str> {
        self.registered.iter().map(|found| found.name.as_str())
    }

    /// Of these the kernel's own.
    pub(crate) fn native(&self) -> impl Iterator<Item = &str> {
        let native = self.registered.iter().filter(|found| found.is_native());
        native.map(|found| found.name.as_str())
    }

    /// Those for which there are modules that are not loaded.
    pub(crate) fn unloaded_modules(&self) -> impl Iterator<Item = &str> {
        let names = self.modules.iter().flatten().map(String::as_str);
        names.filter(|name| self.find(name).is_none())
    }

    /// Why this process cannot load programs, if so.
    pub(crate) fn obstacle(&self) -> Option<&LoadError> {
        self.obstacle.as_ref()
    }

    /// How a control can be had, by a process that has the privileges.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn means(&self, name: &str) -> Result<Means, WhyNot> {
        let registered = self.find(name);
        if registered.is_some_and(Registered::is_native) {
            return Ok(Means::Kernel);
        }
        if registered.is_none() && self.has_module(name) {
            return Ok(Means::Module);
        }
        match (name.parse(), &self.obstacle) {
            // Another process may have what this one lacks.
            (Ok(control), None | Some(LoadError::Capabilities(_))) => Ok(Means::Program(control)),
            (Ok(control), Some(err)) => Err(WhyNot::Program {
                control,
                err: err.clone(),
            }),
            (Err(_), _) if registered.is_some() => Ok(Means::Foreign),
            (Err(_), _) => Err(self.unknown(name)),
        }
    }

    /// What a list comes to: the first that can be had.
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

    /// What there is, in words.
    pub(crate) fn inventory(&self) -> String {
        let kernel: Vec<_> = self.native().chain(self.unloaded_modules()).collect();
        let ours = Control::names().join(", ");
        format!("the kernel has {}; pepd has {ours}", kernel.join(", "))
    }

    /// Why nothing of a list can be had, in one line.
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

    /// Where the modules cannot be listed, asking for the control is the only way to know; if
    /// there is a module it is loaded then.
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

/// Why the kernel does not give a socket this control; `None` if it does.
pub(super) fn asks_in_vain(name: &str) -> Option<io::Error> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    let asked = socket.and_then(|socket| socket.set_tcp_congestion(name.as_bytes()));
    asked.err()
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
pub(super) mod tests;

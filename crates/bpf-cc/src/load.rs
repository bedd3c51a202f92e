//! Registration of programs with the kernel.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

use libbpf_rs::{
    ErrorKind, Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject,
    PrintLevel, get_print, set_print,
};
use parking_lot::Mutex;

use crate::{
    Control, LoadError, kernel,
    leftovers::{self, Unlinked},
    requirements::{self, Abilities},
};

/// The default RTT0 of Hybla, as in its paper and in the kernel's module.
pub const RTT0_DEFAULT: Duration = Duration::from_millis(25);

/// Terms of one socket, as its control reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketTerms {
    /// Reference round trip of Hybla.
    pub rtt0: Duration,
    /// Minimum of the retransmission timer beyond the round trip; `None` leaves it to the kernel.
    pub rto_min: Option<Duration>,
}

impl SocketTerms {
    /// Returns them as `struct stated` of the programs (bpf/stated.h).
    fn to_bytes(self) -> [u8; 8] {
        let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&us(self.rtt0).to_ne_bytes());
        bytes[4..].copy_from_slice(&self.rto_min.map_or(0, us).to_ne_bytes());
        bytes
    }
}

/// The number of names tried for one control, one per process of the machine that uses it.
const NAMES: usize = 100;

/// The kernel's TCP_CA_NAME_MAX, including the final zero.
const NAME_MAX: usize = 16;

/// The map of per-socket settings, in the objects that have one.
const PER_SOCKET: &str = "per_socket";

/// The map of `two_arguments` (cong_control.h), in the objects that have one.
const TWO_ARGUMENTS: &str = ".rodata.cc";

/// Controls that are registered while this value lives.
///
/// Once it is dropped no socket can choose them; sockets that use them keep them. From Linux 6.4 on
/// the end of the process has the same effect, before that only [`unregister`](Self::unregister).
#[derive(Debug, Default)]
pub struct Loaded {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    control: Control,
    name: String,
    per_socket: Option<MapHandle>,
    /// The registration from Linux 6.4 on; closing it unregisters.
    _link: Option<Link>,
    /// The registration before Linux 6.4.
    unlinked: Option<Unlinked>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.unlinked.iter().for_each(Unlinked::unregister);
    }
}

impl Loaded {
    /// Registers each of `controls` once: see [`add`](Self::add).
    ///
    /// # Errors
    /// The first error of [`add`](Self::add); then nothing stays registered.
    pub fn load(controls: &[Control]) -> Result<Self, LoadError> {
        let mut loaded = Self::default();
        for &control in controls {
            loaded.add(control)?;
        }
        Ok(loaded)
    }

    /// Registers a control, unless it is registered already, and returns the name for
    /// TCP_CONGESTION. The name has a suffix where another control has taken it: see [`free_name`].
    ///
    /// # Errors
    /// A feature that this machine lacks, or the kernel's reason to reject the program.
    pub fn add(&mut self, control: Control) -> Result<&str, LoadError> {
        self.add_as(control, names(control))
    }

    /// Registers a control under a suffixed name, like [`add`](Self::add) otherwise. Its own name
    /// stays free for the kernel's control, even if that is not loaded yet.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_beside(&mut self, control: Control) -> Result<&str, LoadError> {
        self.add_as(control, names(control).skip(1))
    }

    fn add_as(
        &mut self,
        control: Control,
        names: impl Iterator<Item = String>,
    ) -> Result<&str, LoadError> {
        let at = match self.entries.iter().position(|e| e.control == control) {
            Some(at) => at,
            None => {
                let abilities = requirements::abilities()?;
                self.entries.push(register(control, names, abilities)?);
                self.entries.len() - 1
            }
        };
        Ok(&self.entries[at].name)
    }

    /// Unregisters all controls, as dropping does: for a process that ends without running
    /// destructors.
    pub fn unregister(&self) {
        let unlinked = self.entries.iter().filter_map(|e| e.unlinked.as_ref());
        unlinked.for_each(Unlinked::unregister);
    }

    /// Returns the registered name of a control; `None` if the control was not loaded.
    pub fn name_of(&self, control: Control) -> Option<&str> {
        self.entry(control).map(|entry| entry.name.as_str())
    }

    /// Returns each control with its registered name.
    pub fn names(&self) -> impl Iterator<Item = (Control, &str)> {
        self.entries
            .iter()
            .map(|entry| (entry.control, entry.name.as_str()))
    }

    /// Sets the terms of one socket before it connects or, for accepted sockets, on the listener.
    /// Controls without terms ignore them.
    ///
    /// # Errors
    /// When the descriptor is no socket, or memory is short.
    pub fn state(
        &self,
        control: Control,
        socket: BorrowedFd<'_>,
        terms: &SocketTerms,
    ) -> io::Result<()> {
        let Some(map) = self.entry(control).and_then(|e| e.per_socket.as_ref()) else {
            return Ok(());
        };
        let key = socket.as_raw_fd().to_ne_bytes();
        let set = map.update(&key, &terms.to_bytes(), MapFlags::ANY);
        set.map_err(io::Error::other)
    }

    fn entry(&self, control: Control) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.control == control)
    }
}

/// Returns the candidate names of a control: its own, then those with a suffix.
fn names(control: Control) -> impl Iterator<Item = String> {
    (0..NAMES).map(move |n| match n {
        0 => control.name().to_owned(),
        1 => format!("{control}_bpf"),
        n => format!("{control}_bpf{n}"),
    })
}

/// Returns the first name for a control that is not in `taken`.
///
/// # Errors
/// [`LoadError::NamesTaken`].
pub fn free_name(control: Control, taken: &[String]) -> Result<String, LoadError> {
    let free = names(control).find(|name| !taken.contains(name));
    free.ok_or(LoadError::NamesTaken {
        control,
        tried: NAMES - 1,
    })
}

fn register(
    control: Control,
    names: impl Iterator<Item = String>,
    abilities: Abilities,
) -> Result<Entry, LoadError> {
    if !abilities.links {
        leftovers::remove_leftovers();
    }
    let taken = kernel::available().unwrap_or_default();
    for name in names {
        if taken.contains(&name) {
            continue;
        }
        match register_as(control, &name, abilities) {
            // Another process registered this name first.
            Err((err, _)) if err.kind() == ErrorKind::AlreadyExists => {}
            Err((err, said)) => return Err(refused(control, &err, &said)),
            Ok(entry) => return Ok(entry),
        }
    }
    Err(LoadError::NamesTaken {
        control,
        tried: NAMES - 1,
    })
}

fn register_as(
    control: Control,
    name: &str,
    abilities: Abilities,
) -> Result<Entry, (libbpf_rs::Error, String)> {
    listening(|| {
        let mut object = ObjectBuilder::default().open_memory(control.object())?;
        rename(&mut object, control.name(), name)?;
        fit(&mut object, abilities)?;
        let mut object = object.load()?;
        let per_socket = per_socket(&object)?;
        let (link, unlinked) = attach(&mut object, abilities)?;
        Ok(Entry {
            control,
            name: name.to_owned(),
            per_socket,
            _link: link,
            unlinked,
        })
    })
}

fn rename(object: &mut OpenObject, from: &str, to: &str) -> libbpf_rs::Result<()> {
    let mut maps = object.maps_mut();
    let mut map = maps
        .find(|map| map.map_type() == MapType::StructOps)
        .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    // Loading fills in the pointers before the name, so that they cannot match it.
    let place = map.initial_value_mut().and_then(|value| {
        let at = value
            .windows(from.len())
            .position(|w| w == from.as_bytes())?;
        value.get_mut(at..at + NAME_MAX)
    });
    let place = place.ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::EINVAL))?;
    place.fill(0);
    place[..to.len()].copy_from_slice(to.as_bytes());
    Ok(())
}

/// Adapts the object to the kernel.
fn fit(object: &mut OpenObject, abilities: Abilities) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        if map.map_type() == MapType::StructOps && !abilities.links {
            map.set_map_flags(0)?;
        } else if map.name() == TWO_ARGUMENTS
            && let Some(value) = map.initial_value_mut()
        {
            value.fill(abilities.two_arguments.into());
        }
    }
    Ok(())
}

fn per_socket(object: &Object) -> libbpf_rs::Result<Option<MapHandle>> {
    object
        .maps()
        .find(|map| map.name() == PER_SOCKET)
        .map(|map| MapHandle::try_from(&map))
        .transpose()
}

fn attach(
    object: &mut Object,
    abilities: Abilities,
) -> libbpf_rs::Result<(Option<Link>, Option<Unlinked>)> {
    let mut map = object
        .maps_mut()
        .find(|map| map.map_type() == MapType::StructOps)
        .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?;
    if abilities.links {
        return Ok((Some(map.attach_struct_ops()?), None));
    }
    // Before registration: else another process might take the control for a leftover.
    let unlinked = Unlinked::new(MapHandle::try_from(&map)?)?;
    // libbpf's substitute for a link would unregister by a descriptor that the object closes.
    map.attach_struct_ops()?.disconnect();
    Ok((None, Some(unlinked)))
}

fn refused(control: Control, err: &libbpf_rs::Error, said: &str) -> LoadError {
    // The verifier's log ends with the rejected instruction.
    let mut last: Vec<_> = said.lines().rev().take(5).map(str::trim).collect();
    last.reverse();
    LoadError::Refused {
        control,
        reason: format!("{err:#}; {}", last.join("; ")),
    }
}

/// Runs `f` and returns its error with libbpf's messages. One call at a time: libbpf has one
/// callback for messages per process.
fn listening<T>(f: impl FnOnce() -> libbpf_rs::Result<T>) -> Result<T, (libbpf_rs::Error, String)> {
    static ONE: Mutex<()> = Mutex::new(());
    static SAID: Mutex<String> = Mutex::new(String::new());
    #[expect(clippy::needless_pass_by_value, reason = "signature of libbpf-rs")]
    fn listen(_: PrintLevel, message: String) {
        SAID.lock().push_str(&message);
    }

    let _one = ONE.lock();
    let before = get_print();
    set_print(Some((PrintLevel::Warn, listen)));
    let result = f();
    set_print(before);
    let said = std::mem::take(&mut *SAID.lock());
    result.map_err(|err| (err, said))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn names_that_are_taken_are_avoided() {
        let mut taken = Vec::new();
        let free = |taken: &[String]| free_name(Control::HyblaSat, taken);
        for expected in ["hybla_sat", "hybla_sat_bpf", "hybla_sat_bpf2"] {
            let name = free(&taken).unwrap();
            assert_eq!(name, expected);
            assert!(name.len() < NAME_MAX);
            taken.push(name);
        }
        taken.extend(names(Control::HyblaSat));
        assert!(matches!(free(&taken), Err(LoadError::NamesTaken { .. })));
    }

    /// Registers as on a kernel before 6.4, under a name unique to the test; needs root.
    fn unlinked(test: char) -> Entry {
        let mut abilities = requirements::abilities().unwrap();
        abilities.links = false;
        let name = format!("test{test}_{}", std::process::id());
        register(Control::Compound, std::iter::once(name), abilities).unwrap()
    }

    fn is_registered(name: &str) -> bool {
        kernel::available().unwrap().iter().any(|had| had == name)
    }

    #[test]
    fn without_links_a_control_is_unregistered_on_drop_and_on_request() {
        let entry = unlinked('a');
        let name = entry.name.clone();
        leftovers::remove_leftovers();
        assert!(is_registered(&name), "it has an owner");
        drop(entry);
        assert!(!is_registered(&name));
        let loaded = Loaded {
            entries: vec![unlinked('a')],
        };
        assert!(is_registered(&name));
        loaded.unregister();
        assert!(!is_registered(&name));
    }

    /// Simulates a killed process: closes its descriptors without unregistering.
    fn killed(mut entry: Entry) -> (String, Unlinked) {
        (entry.name.clone(), entry.unlinked.take().unwrap())
    }

    #[test]
    fn without_links_what_a_killed_process_has_left_is_removed() {
        let (name, unlinked) = killed(unlinked('b'));
        drop(unlinked);
        // Another test's process may remove leftovers, too.
        leftovers::remove_leftovers();
        assert!(!is_registered(&name));
    }

    #[test]
    fn without_links_what_a_predecessor_had_open_is_removed() {
        let (name, kept) = killed(unlinked('c'));
        leftovers::remove_left_by(&[kept.map.as_fd().try_clone_to_owned().unwrap()]);
        assert!(!is_registered(&name));
    }
}

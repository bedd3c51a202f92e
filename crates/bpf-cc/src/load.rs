//! Handing programs to the kernel, and holding them.

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

/// RTT0 of Hybla where none is stated: what its authors and the kernel's module use.
pub const RTT0_DEFAULT: Duration = Duration::from_millis(25);

/// Names that are tried for one control: as many as fit, for each of the processes of a machine that uses it.
const NAMES: usize = 100;

/// TCP_CA_NAME_MAX, with the zero at the end.
const NAME_MAX: usize = 16;

/// The map of what is stated per socket, in the objects that have one.
const PER_SOCKET: &str = "per_socket";

/// The map of `two_arguments` (cong_control.h), in the objects that have one.
const TWO_ARGUMENTS: &str = ".rodata.cc";

/// Controls that are registered for as long as this lives.
///
/// When it is dropped no socket can choose them any more; those that have keep them. From Linux 6.4
/// on the end of the process does the same, before that only [`unregister`](Self::unregister).
#[derive(Debug, Default)]
pub struct Loaded {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    control: Control,
    name: String,
    per_socket: Option<MapHandle>,
    /// From Linux 6.4 on: it is registered for as long as this is open.
    _link: Option<Link>,
    /// Before that.
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
    /// As there, for the first that cannot be had. Nothing stays registered then.
    pub fn load(controls: &[Control]) -> Result<Self, LoadError> {
        let mut loaded = Self::default();
        for &control in controls {
            loaded.add(control)?;
        }
        Ok(loaded)
    }

    /// Registers a control, unless that was done already, and gives the name under which sockets can
    /// choose it (TCP_CONGESTION). Where its own is taken, by the kernel's control or by that of another
    /// process, it is one with an ending: see [`free_name`].
    ///
    /// # Errors
    /// What is missing on this machine, or why the kernel refuses the program.
    pub fn add(&mut self, control: Control) -> Result<&str, LoadError> {
        self.add_as(control, names(control))
    }

    /// Like [`add`](Self::add), but never under its own name, so that this stays for the kernel's
    /// control, even if that has yet to be loaded.
    ///
    /// # Errors
    /// As there.
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

    /// Unregisters all controls, as dropping does: for a process that ends without dropping
    /// anything.
    pub fn unregister(&self) {
        let unlinked = self.entries.iter().filter_map(|e| e.unlinked.as_ref());
        unlinked.for_each(Unlinked::unregister);
    }

    /// Under which name sockets can choose it; `None` if it was not asked for.
    pub fn name_of(&self, control: Control) -> Option<&str> {
        self.entry(control).map(|entry| entry.name.as_str())
    }

    /// Each control and the name under which it is registered.
    pub fn names(&self) -> impl Iterator<Item = (Control, &str)> {
        self.entries
            .iter()
            .map(|entry| (entry.control, entry.name.as_str()))
    }

    /// States RTT0 for one socket, before it is connected or, for those to be accepted, for its
    /// listener. Controls without an RTT0 take no notice.
    ///
    /// # Errors
    /// When the descriptor is no socket, or memory is short.
    pub fn set_rtt0(
        &self,
        control: Control,
        socket: BorrowedFd<'_>,
        rtt0: Duration,
    ) -> io::Result<()> {
        let Some(map) = self.entry(control).and_then(|e| e.per_socket.as_ref()) else {
            return Ok(());
        };
        let us = u32::try_from(rtt0.as_micros()).unwrap_or(u32::MAX);
        let key = socket.as_raw_fd().to_ne_bytes();
        let set = map.update(&key, &us.to_ne_bytes(), MapFlags::ANY);
        set.map_err(io::Error::other)
    }

    fn entry(&self, control: Control) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.control == control)
    }
}

/// The names for a control: its own, then such that say where it comes from.
fn names(control: Control) -> impl Iterator<Item = String> {
    (0..NAMES).map(move |n| match n {
        0 => control.name().to_owned(),
        1 => format!("{control}_bpf"),
        n => format!("{control}_bpf{n}"),
    })
}

/// The first name for a control that is not among those `taken`.
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
            // Somebody was faster.
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
    // Its pointers are filled in on loading, so that nothing before the name can look like it.
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

/// Fits the object to the kernel.
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
    // Before it is registered: else another process might take it for one that is left over.
    let unlinked = Unlinked::new(MapHandle::try_from(&map)?)?;
    // libbpf's stand-in for a link would unregister by a descriptor that the object closes.
    map.attach_struct_ops()?.disconnect();
    Ok((None, Some(unlinked)))
}

fn refused(control: Control, err: &libbpf_rs::Error, said: &str) -> LoadError {
    // The verifier's log ends with what it did not like.
    let mut last: Vec<_> = said.lines().rev().take(5).map(str::trim).collect();
    last.reverse();
    LoadError::Refused {
        control,
        reason: format!("{err:#}; {}", last.join("; ")),
    }
}

/// Runs `f`, and gives what libbpf said meanwhile with an error. One at a time: libbpf has one
/// place to say it for the whole process.
fn listening<T>(f: impl FnOnce() -> libbpf_rs::Result<T>) -> Result<T, (libbpf_rs::Error, String)> {
    static ONE: Mutex<()> = Mutex::new(());
    static SAID: Mutex<String> = Mutex::new(String::new());
    #[expect(clippy::needless_pass_by_value, reason = "libbpf-rs asks for it")]
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

    /// As on a kernel before 6.4, under a name that no other test has; needs root.
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
    fn without_links_it_is_unregistered_when_dropped_and_when_told() {
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

    /// The end of a process closes what it has open, and nothing is unregistered.
    fn killed(mut entry: Entry) -> (String, Unlinked) {
        (entry.name.clone(), entry.unlinked.take().unwrap())
    }

    #[test]
    fn without_links_what_a_killed_process_has_left_is_removed() {
        let (name, unlinked) = killed(unlinked('b'));
        drop(unlinked);
        // Another test's process may do so, too.
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

//! Controls that stay registered after their process was killed: before Linux 6.4 no link holds
//! them.
//!
//! Each such control has a second map, its owner, which no program uses. Only descriptors of its
//! process, or of the keeper, hold the owner. Its name is the control's id. A control of this crate
//! without an owner is a leftover, in every namespace.

use std::{
    ffi::CStr,
    os::fd::{AsFd as _, OwnedFd},
};

use libbpf_rs::{
    MapHandle, MapInfo, MapType, Result,
    libbpf_sys::{BPF_F_LINK, bpf_map_create_opts},
    query::MapInfoIter,
};

/// The prefix of the names of this crate's struct_ops maps.
const PREFIX: &str = "pepd_";

/// A control without a link, registered until it is unregistered.
#[derive(Debug)]
pub(crate) struct Unlinked {
    pub(crate) map: MapHandle,
    _owner: MapHandle,
}

impl Unlinked {
    /// Creates the owner; must precede the registration of the control.
    pub(crate) fn new(map: MapHandle) -> Result<Self> {
        let name = owner_of(MapInfo::new(map.as_fd())?.info.id);
        let opts = bpf_map_create_opts {
            sz: size_of::<bpf_map_create_opts>() as _,
            ..bpf_map_create_opts::default()
        };
        let owner = MapHandle::create(MapType::Array, Some(name), 4, 4, 1, &opts)?;
        Ok(Self { map, _owner: owner })
    }

    pub(crate) fn unregister(&self) {
        // Fails if the control is unregistered already.
        let _ = sys::unregister(self.map.as_fd());
    }
}

/// Returns the owner's name, at most 15 bytes, the limit for map names.
fn owner_of(id: u32) -> String {
    format!("{PREFIX}{id}")
}

/// Removes the controls of killed processes in all namespaces; sockets that use them keep them.
/// Returns their number: 0 without CAP_SYS_ADMIN, which listing requires.
pub fn remove_leftovers() -> usize {
    let maps: Vec<_> = MapInfoIter::default().collect();
    let has_owner = |id: u32| {
        let owner = owner_of(id);
        maps.iter().any(|map| is(&map.name, &owner))
    };
    let ours = maps.iter().filter(|map| {
        let name = map.name.to_str().unwrap_or_default();
        is_unlinked(map.ty, map.map_flags, name) && !has_owner(map.id)
    });
    let found = ours.filter_map(|map| MapHandle::from_map_id(map.id).ok());
    found
        .filter(|map| sys::unregister(map.as_fd()).is_ok())
        .count()
}

/// Removes this crate's controls among the maps that an ended process had open.
pub fn remove_left_by(maps: &[OwnedFd]) {
    for map in maps {
        let info = MapInfo::new(map.as_fd());
        let is_ours = info.is_ok_and(|info| {
            let name = info.name().unwrap_or_default();
            is_unlinked(info.map_type(), info.info.map_flags, name)
        });
        if is_ours {
            // Fails if the process unregistered it before its end.
            let _ = sys::unregister(map.as_fd());
        }
    }
}

fn is_unlinked(ty: MapType, flags: u32, name: &str) -> bool {
    ty == MapType::StructOps && flags & BPF_F_LINK == 0 && name.starts_with(PREFIX)
}

fn is(name: &CStr, expected: &str) -> bool {
    name.to_bytes() == expected.as_bytes()
}

pub(crate) mod sys {
    //! Deletion by descriptor, for which libbpf-rs has no function.

    use std::{
        io,
        os::fd::{AsRawFd as _, BorrowedFd},
    };

    use libbpf_rs::libbpf_sys;

    /// Unregisters a control that no link holds.
    ///
    /// # Errors
    /// When the control is not registered, or the descriptor is no struct_ops map.
    pub fn unregister(map: BorrowedFd<'_>) -> io::Result<()> {
        let key = 0u32;
        // SAFETY: the kernel reads the key, which has the length of such maps' keys and outlives
        // the call.
        let result =
            unsafe { libbpf_sys::bpf_map_delete_elem(map.as_raw_fd(), (&raw const key).cast()) };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_crates_unlinked_controls_can_be_leftovers() {
        let ours = |ty, flags, name| is_unlinked(ty, flags, name);
        assert!(ours(MapType::StructOps, 0, "pepd_hybla_sat"));
        assert!(!ours(MapType::StructOps, BPF_F_LINK, "pepd_hybla_sat"));
        assert!(!ours(MapType::StructOps, 0, "vegas"));
        assert!(!ours(MapType::Array, 0, "pepd_7"));
        assert!(owner_of(u32::MAX).len() < 16, "BPF_OBJ_NAME_LEN");
    }
}

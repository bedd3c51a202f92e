//! What the kernel and the process must have before a program can be loaded.

use std::{fs, sync::OnceLock};

use caps::{CapSet, Capability};
use libbpf_rs::{
    MapHandle, MapType,
    btf::{
        Btf, ReferencesType as _,
        types::{Enum, FuncProto, Ptr, Struct},
    },
    libbpf_sys::bpf_map_create_opts,
};

use crate::{LoadError, error::Missing};

const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// `bpf(2)` asks for the first, for tracing-like programs such as these for the second, and for
/// congestion controls, which are network administration, for the third.
const NEEDED: [(Capability, &str); 3] = [
    (Capability::CAP_BPF, "CAP_BPF"),
    (Capability::CAP_PERFMON, "CAP_PERFMON"),
    (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
];

/// The first version that was tried. 6.0 let programs write pacing rates, and do without
/// `cong_avoid`.
const OLDEST: &str = "6.1";

/// A function that programs may call since [`OLDEST`]. Vendors backport BPF as a whole, so that it
/// tells more than a version's number does.
const OF_OLDEST: &str = "BPF_FUNC_user_ringbuf_drain";

/// Differences between the kernels that take our programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Links hold what is registered, so that it is gone with its process (Linux 6.4).
    pub links: bool,
    /// `cong_control` gets the socket and the sample only (before Linux 6.10).
    pub two_arguments: bool,
}

/// Whether programs can be loaded at all, as far as can be told without loading one.
///
/// # Errors
/// [`LoadError::NoBtf`], [`LoadError::TooOld`], [`LoadError::NotBuilt`], and then
/// [`LoadError::Capabilities`] and [`LoadError::Forbidden`]: the kernel's reasons hold for other
/// processes, too.
pub fn check() -> Result<(), LoadError> {
    abilities().map(drop)
}

/// As [`check`], for who loads.
pub(crate) fn abilities() -> Result<Abilities, LoadError> {
    static OF_KERNEL: OnceLock<Result<Abilities, LoadError>> = OnceLock::new();
    let abilities = OF_KERNEL.get_or_init(of_kernel).clone()?;
    match missing_capabilities() {
        missing if missing.is_empty() => may_call().map(|()| abilities),
        missing => Err(LoadError::Capabilities(Missing(missing))),
    }
}

/// Asks for a small map, which nothing but a filter of system calls refuses to who has the
/// capabilities.
fn may_call() -> Result<(), LoadError> {
    let opts = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        ..bpf_map_create_opts::default()
    };
    let map = MapHandle::create(MapType::Array, Some("pepd_probe"), 4, 4, 1, &opts);
    match map {
        Err(err) if err.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
            Err(LoadError::Forbidden(err.to_string()))
        }
        _ => Ok(()),
    }
}

fn of_kernel() -> Result<Abilities, LoadError> {
    let btf = Btf::from_path(KERNEL_BTF).map_err(|_| LoadError::NoBtf)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Types::of(&btf).judge(release.trim())
}

/// The parts of the kernel's BTF that tell what it can do.
#[derive(Debug, Clone, Copy)]
struct Types {
    /// Congestion controls may be programs.
    struct_ops: bool,
    /// [`OF_OLDEST`] is there.
    of_oldest: bool,
    /// The number of arguments of `tcp_congestion_ops.cong_control`.
    arguments: Option<usize>,
    /// Links of what is registered.
    link: bool,
}

impl Types {
    fn of(btf: &Btf<'_>) -> Self {
        let is_there = |name| btf.type_by_name::<Struct<'_>>(name).is_some();
        let functions = btf.type_by_name::<Enum<'_>>("bpf_func_id");
        Self {
            struct_ops: is_there("bpf_struct_ops_tcp_congestion_ops"),
            of_oldest: functions.is_some_and(|functions| {
                let mut functions = functions.iter();
                functions.any(|function| function.name.is_some_and(|name| name == OF_OLDEST))
            }),
            arguments: arguments(btf, "tcp_congestion_ops", "cong_control"),
            link: is_there("bpf_struct_ops_link"),
        }
    }

    fn judge(self, release: &str) -> Result<Abilities, LoadError> {
        let Some(arguments) = self.arguments.filter(|_| self.of_oldest) else {
            return Err(LoadError::TooOld {
                needs: OLDEST,
                release: release.to_owned(),
            });
        };
        if !self.struct_ops {
            return Err(LoadError::NotBuilt);
        }
        Ok(Abilities {
            links: self.link,
            two_arguments: arguments == 2,
        })
    }
}

/// The number of arguments of the function to which a member of a structure points.
fn arguments(btf: &Btf<'_>, structure: &str, member: &str) -> Option<usize> {
    let structure = btf.type_by_name::<Struct<'_>>(structure)?;
    let mut members = structure.iter();
    let member = members.find(|one| one.name.is_some_and(|name| name == member))?;
    let pointer = btf.type_by_id::<Ptr<'_>>(member.ty)?;
    let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(function.len())
}

/// Those of the capabilities needed to load programs that this process does not have effective.
pub fn missing_capabilities() -> Vec<&'static str> {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    // CAP_SYS_ADMIN stands in for the other two, as it did before they existed (Linux 5.8).
    let stood_in =
        |capability| capability != Capability::CAP_NET_ADMIN && has(Capability::CAP_SYS_ADMIN);
    NEEDED
        .into_iter()
        .filter(|&(capability, _)| !(has(capability) || stood_in(capability)))
        .map(|(_, name)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX_6_12: Types = Types {
        struct_ops: true,
        of_oldest: true,
        arguments: Some(4),
        link: true,
    };

    #[test]
    fn each_kernel_gets_what_it_can_take() {
        let of = |links, two_arguments| Abilities {
            links,
            two_arguments,
        };
        let linux_6_6 = Types {
            arguments: Some(2),
            ..LINUX_6_12
        };
        let linux_6_1 = Types {
            link: false,
            ..linux_6_6
        };
        for (types, expected) in [
            (LINUX_6_12, of(true, false)),
            (linux_6_6, of(true, true)),
            (linux_6_1, of(false, true)),
        ] {
            assert_eq!(types.judge("6.1.0").ok(), Some(expected));
        }
    }

    #[test]
    fn a_kernel_that_takes_none_is_told_what_it_lacks() {
        let why = |types: Types| types.judge("5.15.0-91-generic").unwrap_err().to_string();
        let linux_5_15 = Types {
            of_oldest: false,
            arguments: Some(2),
            link: false,
            ..LINUX_6_12
        };
        assert_eq!(
            why(linux_5_15),
            "eBPF congestion controls need Linux 6.1 or later; this is 5.15.0-91-generic"
        );
        let without_jit = Types {
            struct_ops: false,
            ..LINUX_6_12
        };
        assert!(why(without_jit).contains("CONFIG_BPF_JIT"));
    }

    #[test]
    fn the_running_kernel_shows_its_types() {
        let Ok(btf) = Btf::from_path(KERNEL_BTF) else {
            return;
        };
        let arguments = Types::of(&btf).arguments;
        assert!(matches!(arguments, Some(2 | 4)), "{arguments:?}");
        assert_eq!(super::arguments(&btf, "tcp_congestion_ops", "none"), None);
    }
}

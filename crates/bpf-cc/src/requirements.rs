//! Requirements on the kernel and the process for loading programs.

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

/// Capabilities that `bpf(2)` requires: in general, for tracing-like programs, and for congestion
/// controls.
const NEEDED: [(Capability, &str); 3] = [
    (Capability::CAP_BPF, "CAP_BPF"),
    (Capability::CAP_PERFMON, "CAP_PERFMON"),
    (Capability::CAP_NET_ADMIN, "CAP_NET_ADMIN"),
];

/// The first version that was tried. Linux 6.0 let programs write pacing rates and omit
/// `cong_avoid`.
const OLDEST: &str = "6.1";

/// A function available to programs since [`OLDEST`]. Vendors backport BPF as a whole, so it is a
/// better test than the version number.
const OF_OLDEST: &str = "BPF_FUNC_user_ringbuf_drain";

/// Differences between supported kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Registrations have links, which end with the process (Linux 6.4).
    pub links: bool,
    /// `cong_control` has only the socket and the sample as arguments (before Linux 6.10).
    pub two_arguments: bool,
}

/// Checks whether programs can be loaded, as far as possible without loading one.
///
/// # Errors
/// [`LoadError::NoBtf`], [`LoadError::TooOld`], [`LoadError::NotBuilt`], and then
/// [`LoadError::Capabilities`] and [`LoadError::Forbidden`]: the kernel's limits apply to other
/// processes, too.
pub fn check() -> Result<(), LoadError> {
    abilities().map(drop)
}

/// Checks like [`check`] and returns the kernel's abilities.
pub(crate) fn abilities() -> Result<Abilities, LoadError> {
    static OF_KERNEL: OnceLock<Result<Abilities, LoadError>> = OnceLock::new();
    let abilities = OF_KERNEL.get_or_init(from_btf).clone()?;
    match missing_capabilities() {
        missing if missing.is_empty() => may_call().map(|()| abilities),
        missing => Err(LoadError::Capabilities(Missing(missing))),
    }
}

/// Creates a small map: a process with the capabilities fails only if a filter denies the call.
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

fn from_btf() -> Result<Abilities, LoadError> {
    let btf = Btf::from_path(KERNEL_BTF).map_err(|_| LoadError::NoBtf)?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Types::from_btf(&btf).judge(release.trim())
}

/// Abilities found in the kernel's BTF.
#[derive(Debug, Clone, Copy)]
struct Types {
    /// Support for congestion controls as programs.
    struct_ops: bool,
    /// Presence of [`OF_OLDEST`].
    of_oldest: bool,
    /// The number of arguments of `tcp_congestion_ops.cong_control`.
    arguments: Option<usize>,
    /// Support for links of struct_ops.
    link: bool,
}

impl Types {
    fn from_btf(btf: &Btf<'_>) -> Self {
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

/// Returns the number of arguments of the function pointer in a member of a structure.
fn arguments(btf: &Btf<'_>, structure: &str, member: &str) -> Option<usize> {
    let structure = btf.type_by_name::<Struct<'_>>(structure)?;
    let mut members = structure.iter();
    let member = members.find(|one| one.name.is_some_and(|name| name == member))?;
    let pointer = btf.type_by_id::<Ptr<'_>>(member.ty)?;
    let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(function.len())
}

/// Returns the capabilities needed to load programs that are not in the effective set.
pub fn missing_capabilities() -> Vec<&'static str> {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    // CAP_SYS_ADMIN includes the other two, which were split off in Linux 5.8.
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
    fn errors_name_the_features_that_a_kernel_lacks() {
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
        let arguments = Types::from_btf(&btf).arguments;
        assert!(matches!(arguments, Some(2 | 4)), "{arguments:?}");
        assert_eq!(super::arguments(&btf, "tcp_congestion_ops", "none"), None);
    }
}

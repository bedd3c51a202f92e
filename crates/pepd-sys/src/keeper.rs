//! A process that shares pepd's descriptor table and otherwise sleeps.
//!
//! Every descriptor that pepd opens or accepts is in its table before the call returns. So pepd's
//! end closes no socket at any moment, and no handover is needed.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::OnceLock,
    time::Duration,
};

use caps::Capability;
use nix::{
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow},
    },
    unistd::Pid,
};

use crate::privileges::{self, Phase};

/// The keeper's name in /proc.
pub const NAME: &CStr = c"pepd-keeper";

/// The maximum number of descriptors searched for TUN devices. Those opened first have the lowest
/// numbers; a million calls take a tenth of a second.
const DESCRIPTORS_MAX: libc::c_int = 1 << 20;

/// Starts a keeper. When this process ends, the keeper closes the TUN devices: no process reads
/// them, and the kernel must forward their packets. The keeper ends by SIGKILL, or `patience` after
/// the end of this process. It uses none of its [capabilities](Phase::Keeper).
///
/// It is a copy of this process, and shares its memory copy-on-write: the earlier it starts, the
/// less memory it keeps.
///
/// # Errors
/// As clone(2).
///
/// The OOM killer ends it last, if CAP_SYS_RESOURCE permits that.
pub fn spawn(patience: Duration) -> io::Result<Pid> {
    let patience = libc::c_int::try_from(patience.as_millis()).unwrap_or(libc::c_int::MAX);
    let parent = Pid::this().as_raw();
    // The child inherits a mask with all signals blocked, so that only SIGKILL ends it, and its
    // name, by which other processes identify it.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let name = own_name()?;
    let held = privileges::mask(Phase::Keeper, false);
    prctl::set_name(NAME)?;
    let spared = Spared::new("-1000");
    let flags = (libc::CLONE_FILES | libc::SIGCHLD) as libc::c_ulong;
    // All other architectures take the flags first, then the stack.
    let (first, second) = if cfg!(target_arch = "s390x") {
        (0, flags)
    } else {
        (flags, 0)
    };
    // SAFETY: without a stack and without CLONE_VM this is fork(2) with a shared descriptor table.
    // The remaining arguments are 0 in any order. The child only makes system calls, and never
    // returns.
    let result = unsafe { libc::syscall(libc::SYS_clone, first, second, 0, 0, 0) };
    if result == 0 {
        // SAFETY: this is the child of `clone`.
        unsafe { keep(parent, patience, held) }
    }
    let child = super::socket::check(result as libc::c_int);
    drop(spared);
    prctl::set_name(&name)?;
    mask.thread_set_mask()?;
    Ok(Pid::from_raw(child?))
}

/// While this exists, the OOM killer ends the calling process last, and its children inherit that:
/// a child of a process that landlock(7) confines cannot open its own setting.
struct Spared {
    /// The setting before.
    before: Option<String>,
}

impl Spared {
    /// Sets `oom_score_adj`; does nothing if that is not permitted.
    fn new(adjustment: &str) -> Self {
        let before = Self::file().and_then(|file| {
            let mut text = [0; 16];
            let length = file.read_at(&mut text, 0).ok()?;
            file.write_at(adjustment.as_bytes(), 0).ok()?;
            Some(String::from_utf8_lossy(&text[..length]).into_owned())
        });
        Self { before }
    }

    /// Returns the setting of this process (proc_pid_oom_score_adj(5)). It stays open, since the
    /// process may not open it any more once it is confined and not dumpable.
    fn file() -> Option<&'static File> {
        static FILE: OnceLock<Option<File>> = OnceLock::new();
        let open = || {
            let mut options = File::options();
            options.read(true).write(true);
            options.open("/proc/self/oom_score_adj").ok()
        };
        FILE.get_or_init(open).as_ref()
    }
}

impl Drop for Spared {
    fn drop(&mut self) {
        let (Some(file), Some(before)) = (Self::file(), &self.before) else {
            return;
        };
        // A higher value is always permitted.
        if let Err(err) = file.write_at(before.trim_end().as_bytes(), 0) {
            tracing::warn!(error = %err, "cannot restore oom_score_adj: the OOM killer spares pepd");
        }
    }
}

/// Returns the name of this thread.
fn own_name() -> io::Result<CString> {
    // nix lends the kernel a buffer that the compiler may take for unchanged. The worker of a pepd
    // built with thin LTO had no name.
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, of which the last is 0 (prctl(2)).
    super::socket::check(unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr(), 0, 0, 0) })?;
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_owned())
}

/// # Safety
/// The caller must be a process of its own. Other threads may have held locks at the fork: nothing
/// here allocates or takes one.
unsafe fn keep(parent: libc::pid_t, patience: libc::c_int, held: u64) -> ! {
    // SAFETY: system calls with integers, and with pointers that outlive them. Only descriptors are
    // shared with the parent: those opened here are closed here, others after the parent's end.
    unsafe {
        // A successor reads the keeper's descriptor table: with file capabilities, or under Yama,
        // the kernel would deny that otherwise.
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        hold_only(held);
        // Fails if the parent has ended already.
        let process = libc::syscall(libc::SYS_pidfd_open, parent, 0) as libc::c_int;
        if process >= 0 {
            let mut end = libc::pollfd {
                fd: process,
                events: libc::POLLIN,
                revents: 0,
            };
            while libc::poll(&raw mut end, 1, -1) < 1 {}
        }
        close_tuns();
        libc::poll(std::ptr::null_mut(), 0, patience);
        libc::_exit(0)
    }
}

/// `struct __user_cap_data_struct` of capget(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Version 3 of capget(2): two words.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Drops all capabilities but those in `held`, which stay permitted, and none of which is
/// effective. The kernel lets only a process that has them, too, take this one's descriptors
/// (ptrace(2)).
///
/// # Safety
/// Makes system calls only. The process must have one thread.
unsafe fn hold_only(held: u64) {
    // SAFETY: the structures are those of capget(2), version 3, and outlive the calls.
    unsafe {
        for capability in 0..=libc::c_ulong::from(Capability::CAP_CHECKPOINT_RESTORE as u8) {
            if held & 1 << capability == 0 {
                // Fails without CAP_SETPCAP.
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
        }
        let header = [CAPABILITY_VERSION, 0];
        let mut words = [CapabilityWord::default(); 2];
        libc::syscall(libc::SYS_capget, header.as_ptr(), words.as_mut_ptr());
        for (word, held) in words.iter_mut().zip([held as u32, (held >> 32) as u32]) {
            *word = CapabilityWord {
                permitted: word.permitted & held,
                ..CapabilityWord::default()
            };
        }
        libc::syscall(libc::SYS_capset, header.as_ptr(), words.as_ptr());
    }
}

/// # Safety
/// No other process may use the descriptor table any more. Makes system calls only.
unsafe fn close_tuns() {
    // SAFETY: the structure is of integers, for which all zeroes is valid. It outlives the call,
    // which writes no more than it; other files than TUN devices reject TUNGETIFF.
    unsafe {
        for descriptor in 0..DESCRIPTORS_MAX {
            let mut request: libc::ifreq = std::mem::zeroed();
            if libc::ioctl(descriptor, libc::TUNGETIFF as _, &raw mut request) == 0 {
                libc::close(descriptor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Instant};

    use nix::sys::{
        signal::{Signal, kill},
        wait::waitpid,
    };

    use super::*;

    /// Returns the sets of a process: inheritable, permitted, effective, bounding, ambient.
    fn sets(process: Pid) -> Vec<u64> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let lines = status.lines().filter_map(|line| line.strip_prefix("Cap"));
        let sets = lines.filter_map(|line| line.split_whitespace().nth(1));
        sets.map(|set| u64::from_str_radix(set, 16).unwrap())
            .collect()
    }

    #[test]
    fn it_uses_no_capability_and_is_open_to_those_who_have_its_own() {
        let ours = sets(Pid::this());
        let keeper = spawn(Duration::from_secs(60)).unwrap();
        let held = ours[1] & privileges::mask(Phase::Keeper, false);
        let limit = Instant::now() + Duration::from_secs(20);
        while sets(keeper)[1] != held {
            assert!(Instant::now() < limit, "{:x?}", sets(keeper));
            std::thread::yield_now();
        }
        let [inheritable, _, effective, _, ambient] = sets(keeper)[..] else {
            panic!("five sets");
        };
        kill(keeper, Signal::SIGKILL).unwrap();
        waitpid(keeper, None).unwrap();
        assert_eq!([inheritable, effective, ambient], [0; 3]);
    }

    #[test]
    fn what_a_child_inherits_from_the_oom_setting_is_restored() {
        let setting = |process: &str| {
            let text = fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
            text.trim_end().to_owned()
        };
        let before = setting("self");
        // Lower ones need CAP_SYS_RESOURCE.
        let spared = Spared::new("900");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let inherited = setting(&child.id().to_string());
        drop(spared);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((inherited.as_str(), setting("self")), ("900", before));
    }

    #[test]
    fn the_caller_keeps_its_name() {
        let name = || fs::read("/proc/thread-self/comm").unwrap();
        let before = name();
        let keeper = spawn(Duration::ZERO).unwrap();
        let after = name();
        let keepers = fs::read(format!("/proc/{keeper}/comm")).unwrap();
        kill(keeper, Signal::SIGKILL).unwrap();
        waitpid(keeper, None).unwrap();
        assert_eq!(after, before);
        assert_eq!(keepers.trim_ascii_end(), NAME.to_bytes());
    }
}

//! System calls that a process that carries flows may not make, nor its runner, nor the programs
//! that this one runs.
//!
//! A list of calls to refuse, not of those to allow: a new C library or kernel must not end a flow.
//! The unit has a list of those to allow (`SystemCallFilter=`). A refused call returns EPERM, and
//! the kernel logs it for the audit system.

use std::io;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// Refused calls, by the reason.
const REFUSED: [(&str, &[libc::c_long]); 9] = [
    (
        "other processes and their memory",
        &[
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kcmp,
            libc::SYS_userfaultfd,
        ],
    ),
    (
        "namespaces",
        &[libc::SYS_unshare, libc::SYS_setns, libc::SYS_chroot],
    ),
    (
        "file systems",
        &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            OPEN_TREE,
            OPEN_TREE + 1,
            OPEN_TREE + 2,
            OPEN_TREE + 3,
            OPEN_TREE + 4,
            OPEN_TREE + 5,
            MOUNT_SETATTR,
            libc::SYS_open_by_handle_at,
            libc::SYS_mknodat,
            libc::SYS_fanotify_init,
            libc::SYS_quotactl,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_acct,
        ],
    ),
    // Root owns most files, and landlock does not know these calls.
    (
        "owners, modes and attributes of files",
        &[
            #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
            libc::SYS_chmod,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            FCHMODAT2,
            #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
            libc::SYS_chown,
            #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
            libc::SYS_lchown,
            #[cfg(target_arch = "arm")]
            libc::SYS_chown32,
            #[cfg(target_arch = "arm")]
            libc::SYS_lchown32,
            #[cfg(target_arch = "arm")]
            libc::SYS_fchown32,
            libc::SYS_fchown,
            libc::SYS_fchownat,
            libc::SYS_setxattr,
            libc::SYS_lsetxattr,
            libc::SYS_fsetxattr,
            SETXATTRAT,
            libc::SYS_removexattr,
            libc::SYS_lremovexattr,
            libc::SYS_fremovexattr,
            SETXATTRAT + 3,
        ],
    ),
    (
        "code in the kernel",
        &[
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_kexec_load,
            libc::SYS_reboot,
        ],
    ),
    (
        "rarely used parts of the kernel",
        &[
            libc::SYS_perf_event_open,
            IO_URING_SETUP,
            IO_URING_SETUP + 1,
            IO_URING_SETUP + 2,
        ],
    ),
    (
        "keys of other processes",
        &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl],
    ),
    (
        "the clock",
        &[libc::SYS_settimeofday, libc::SYS_clock_settime],
    ),
    (
        "the machine",
        &[
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_syslog,
        ],
    ),
];

/// Calls that only a process that runs programs may make.
const RUN: [libc::c_long; 2] = [libc::SYS_execve, libc::SYS_execveat];

/// Programs that a process may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// All; the refused calls are refused to them as well.
    Allowed,
    /// None.
    Refused,
}

/// Numbers of calls since Linux 5.1 are the same on all architectures here. `open_tree` to
/// `fspick`, of Linux 5.2.
const OPEN_TREE: libc::c_long = 428;
const MOUNT_SETATTR: libc::c_long = 442;
const IO_URING_SETUP: libc::c_long = 425;
const FCHMODAT2: libc::c_long = 452;
/// With `getxattrat`, `listxattrat` and `removexattrat` behind it, of Linux 6.13.
const SETXATTRAT: libc::c_long = 463;

/// Flags of clone(2) for new namespaces: user, PID, network, mount, UTS, IPC, cgroup.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWCGROUP) as u32;

/// The architecture's number (linux/audit.h), of pepd's own system calls. `None`: no filter.
const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "arm") {
    Some(0x4000_0028)
} else {
    None
};

/// Bit of the calls of x86-64 with 32-bit pointers, which pepd does not make.
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data` (seccomp(2)): the number, the architecture, and the low half of
/// the first argument.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST: u32 = if cfg!(target_endian = "little") {
    16
} else {
    20
};

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, [0, 0])
}

fn result(errno: libc::c_int) -> sock_filter {
    let action = match errno {
        0 => libc::SECCOMP_RET_ALLOW,
        errno => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
    };
    instruction(BPF_RET | BPF_K, action, [0, 0])
}

/// Returns a jump over `[if true, if false]` instructions.
fn jump(condition: u32, value: u32, over: [u8; 2]) -> sock_filter {
    instruction(BPF_JMP | BPF_K | condition, value, over)
}

fn instruction(code: u32, k: u32, [jt, jf]: [u8; 2]) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Returns the filter's program.
fn program(architecture: u32, programs: Programs) -> Vec<sock_filter> {
    let refusal = result(libc::EPERM);
    let mut program = vec![
        load(ARCH),
        jump(BPF_JEQ, architecture, [1, 0]),
        refusal,
        load(NUMBER),
    ];
    if cfg!(target_arch = "x86_64") {
        program.extend([jump(BPF_JSET, X32, [0, 1]), refusal]);
    }
    let run = match programs {
        Programs::Allowed => &[][..],
        Programs::Refused => &RUN,
    };
    let all = REFUSED.iter().flat_map(|(_, calls)| *calls);
    for number in all.chain(run) {
        program.extend([jump(BPF_JEQ, *number as u32, [0, 1]), refusal]);
    }
    // Its flags are in memory, which a filter cannot read: C libraries then call clone(2).
    program.extend([
        jump(BPF_JEQ, libc::SYS_clone3 as u32, [0, 1]),
        result(libc::ENOSYS),
    ]);
    program.extend([
        jump(BPF_JEQ, libc::SYS_clone as u32, [0, 3]),
        load(FIRST),
        jump(BPF_JSET, NEW_NAMESPACES, [0, 1]),
        refusal,
        result(0),
    ]);
    program
}

/// Refuses the calls from now on, to all threads of this process and to all programs that it
/// starts. Needs `PR_SET_NO_NEW_PRIVS`.
///
/// # Errors
/// Without seccomp in the kernel, or a filter for this architecture; where another filter refuses
/// the call.
pub fn refuse(programs: Programs) -> io::Result<()> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    let mut program = program(architecture, programs);
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: the kernel copies the program, which outlives the call and has that length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        )
    };
    match result {
        0 => Ok(()),
        // The id of a thread that has another filter.
        1.. => Err(io::Error::other("a thread has another filter")),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the program for a call: as the kernel does, but for the instructions above only.
    fn judge(program: &[sock_filter], architecture: u32, number: u32, first: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let one = &program[at];
            let code = u32::from(one.code);
            at += 1;
            let holds = if code == BPF_LD | BPF_W | BPF_ABS {
                value = match one.k {
                    NUMBER => number,
                    ARCH => architecture,
                    FIRST => first,
                    other => panic!("offset {other}"),
                };
                continue;
            } else if code == BPF_JMP | BPF_K | BPF_JEQ {
                value == one.k
            } else if code == BPF_JMP | BPF_K | BPF_JSET {
                value & one.k != 0
            } else {
                assert_eq!(code, BPF_RET | BPF_K);
                return one.k;
            };
            at += usize::from(if holds { one.jt } else { one.jf });
        }
    }

    const REFUSAL: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

    #[test]
    fn exactly_the_listed_calls_are_refused() {
        let architecture = ARCHITECTURE.expect("a filter");
        let listed = |number: u32, programs| {
            let run = RUN.iter().filter(|_| programs == Programs::Refused);
            let mut all = REFUSED.iter().flat_map(|(_, calls)| *calls).chain(run);
            all.any(|one| *one as u32 == number)
        };
        let both = [Programs::Allowed, Programs::Refused];
        for (number, programs) in (0..1000).flat_map(|number| both.map(|both| (number, both))) {
            let program = program(architecture, programs);
            let expected = if number == libc::SYS_clone3 as u32 {
                libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32
            } else if listed(number, programs) {
                REFUSAL
            } else {
                libc::SECCOMP_RET_ALLOW
            };
            assert_eq!(
                judge(&program, architecture, number, 0),
                expected,
                "{number}"
            );
            assert_eq!(judge(&program, architecture ^ 1, number, 0), REFUSAL);
        }
    }

    #[test]
    fn threads_and_processes_may_start_and_namespaces_may_not() {
        let architecture = ARCHITECTURE.expect("a filter");
        let program = program(architecture, Programs::Refused);
        let clone = |flags| judge(&program, architecture, libc::SYS_clone as u32, flags);
        let thread = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        for flags in [0, libc::SIGCHLD, thread, libc::CLONE_FILES | libc::SIGCHLD] {
            assert_eq!(clone(flags as u32), libc::SECCOMP_RET_ALLOW, "{flags:#x}");
        }
        for flags in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
            assert_eq!(clone((flags | libc::SIGCHLD) as u32), REFUSAL, "{flags:#x}");
        }
    }
}

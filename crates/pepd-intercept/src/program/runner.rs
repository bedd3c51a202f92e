//! The process that runs programs for one that carries flows.
//!
//! That one reads bytes of attackers, and so may not start a program
//! ([`pepd_sys::privileges::calls`]). The runner has fewer privileges, reads its orders only, and
//! carries out those of a closed list. It ends with the process that has started it.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            process::CommandExt as _,
        },
    },
    process::{Child, Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use caps::{CapSet, Capability, errors::CapsError};
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal},
        socket::{getsockopt, sockopt::PeerCredentials},
    },
    unistd::{close, getppid},
};
use pepd_sys::{
    passing,
    privileges::{self, Phase},
};

use super::{
    Order,
    execute::{self, Files},
};

/// The runner's name in /proc.
pub const NAME: &std::ffi::CStr = c"pepd-runner";
/// Longest order, in bytes: names of tables, and the path of a configuration.
const ORDER_MAX: usize = 8192;
/// Orders carried out at a time. pepd gives a few.
const AT_ONCE: usize = 16;

/// The socket to this process's runner.
static SOCKET: OnceLock<OwnedFd> = OnceLock::new();

/// A runner, as its parent sees it.
#[derive(Debug)]
pub struct Runner {
    process: Child,
    ended: bool,
}

/// Starts a runner for this process, which runs no program itself from now on. Call it once.
/// `words` are those by which the command line of this program leads to [`serve`].
///
/// # Errors
/// Fails without memory, descriptors or a process for it.
pub fn begin(words: &[&str]) -> io::Result<Runner> {
    let (ours, theirs) = passing::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("pepd").args(words);
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let process = command.spawn()?;
    SOCKET
        .set(ours)
        .map_err(|_| io::Error::from(ErrorKind::AlreadyExists))?;
    Ok(Runner {
        process,
        ended: false,
    })
}

impl Runner {
    /// Returns whether it was killed.
    pub fn has_ended(&mut self) -> bool {
        self.ended |= !matches!(self.process.try_wait(), Ok(None));
        self.ended
    }
}

/// Returns the socket to this process's runner; `None` if it runs programs itself.
pub(super) fn socket() -> Option<BorrowedFd<'static>> {
    SOCKET.get().map(|socket| socket.as_fd())
}

/// Sends an order.
pub(super) fn order(runner: BorrowedFd<'_>, order: &Order, files: &Files) -> io::Result<()> {
    let bytes = to_bytes(order)?;
    let mut descriptors = vec![
        files.report.as_fd(),
        files.stdout.as_fd(),
        files.stderr.as_fd(),
    ];
    descriptors.extend(files.input.as_ref().map(|file| file.as_fd()));
    passing::send(runner, &bytes, &descriptors)
}

/// Returns an order as its words, each with a zero behind it.
fn to_bytes(order: &Order) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let args = order.args.iter().map(OsString::as_os_str);
    for word in std::iter::once(order.program.as_os_str()).chain(args) {
        let word = OsStr::as_bytes(word);
        if word.contains(&0) || bytes.len() + word.len() >= ORDER_MAX {
            return Err(ErrorKind::InvalidInput.into());
        }
        bytes.extend_from_slice(word);
        bytes.push(0);
    }
    Ok(bytes)
}

/// Returns the order of these bytes, and its files.
fn from_message(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<(Order, Files)> {
    let words = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
    let mut words = words.map(|word| OsString::from_vec(word.to_vec()));
    let mut descriptors = descriptors.into_iter();
    let order = Order {
        program: words.next()?,
        args: words.collect(),
    };
    let files = Files {
        report: descriptors.next()?.into(),
        stdout: descriptors.next()?.into(),
        stderr: descriptors.next()?.into(),
        input: descriptors.next().map(Into::into),
    };
    Some((order, files))
}

/// Carries out the orders that come by standard input, until the process that has started this one
/// ends. Call it in a process with one thread.
///
/// # Errors
/// When standard input is no socket of a parent, or sends what is no order.
pub fn serve() -> io::Result<()> {
    prctl::set_name(NAME)?;
    // Signals of a terminal or a service manager are for the parent, which needs the runner to its
    // own end.
    let mut signals = SigSet::all();
    signals.remove(Signal::SIGCHLD);
    signals.thread_set_mask()?;
    close_inherited()?;
    let stdin = io::stdin();
    let orders = stdin.as_fd();
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let parent = getsockopt(&orders, PeerCredentials)?.pid();
    if parent != getppid().as_raw() {
        // It has ended before.
        return Ok(());
    }
    confine();
    take_orders(orders)
}

/// Closes what belongs to the parent, such as the pipe of its heartbeat.
fn close_inherited() -> io::Result<()> {
    let numbers = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // The directory itself is among them, and closed by then.
    let numbers: Vec<i32> = numbers.filter(|number| *number > 2).collect();
    for number in numbers {
        let _ = close(number);
    }
    Ok(())
}

fn confine() {
    // Else the worker, a process of the same user, could write into its memory what to run.
    if let Err(err) = privileges::protect_memory() {
        tracing::debug!(error = %err, "the memory of the runner is not protected");
    }
    privileges::limit(Phase::Runner, false);
    hand_down_capabilities();
    privileges::files::confine_runner();
    if let Err(err) = privileges::calls::refuse(privileges::calls::Programs::Allowed) {
        tracing::debug!(error = %err, "system calls are not filtered");
    }
}

/// Passes the capabilities of nft and iptables (raw sockets, of its legacy backend) on to programs
/// that this thread starts.
fn hand_down_capabilities() {
    for capability in [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW] {
        if let Err(err) = hand_down(capability) {
            tracing::debug!(%err, "cannot pass {capability} on to nft and iptables; they have it anyway if pepd runs as root");
        }
    }
}

/// Passes a capability of the calling thread on to its future children (capabilities(7), the
/// ambient set). A capability from a program's file, set by setcap(8), is otherwise not inherited.
fn hand_down(capability: Capability) -> Result<(), CapsError> {
    caps::raise(None, CapSet::Inheritable, capability)?;
    caps::raise(None, CapSet::Ambient, capability)
}

fn take_orders(orders: BorrowedFd<'_>) -> io::Result<()> {
    let busy = Arc::new(AtomicUsize::new(0));
    let mut buffer = [0; ORDER_MAX];
    while let Some((length, descriptors)) = passing::receive(orders, &mut buffer)? {
        let (order, files) =
            from_message(&buffer[..length], descriptors).ok_or(ErrorKind::InvalidData)?;
        // Without a report its pipe closes, and the parent sees a failure.
        if busy.load(SeqCst) >= AT_ONCE {
            continue;
        }
        busy.fetch_add(1, SeqCst);
        let count = Arc::clone(&busy);
        let run = move || {
            execute::carry_out(&order, files);
            count.fetch_sub(1, SeqCst);
        };
        if std::thread::Builder::new().spawn(run).is_err() {
            busy.fetch_sub(1, SeqCst);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _};

    use super::*;
    use crate::program::{execute::Ended, file};

    #[test]
    fn orders_are_carried_out_and_others_refused() {
        let (ours, theirs) = passing::pair().unwrap();
        let serving = std::thread::spawn(move || take_orders(theirs.as_fd()));
        let ask = |program: &str, args: &[&str]| {
            let (mut report, writer) = io::pipe().unwrap();
            let output = file(c"output").unwrap();
            let files = Files {
                report: writer,
                stdout: output.try_clone().unwrap(),
                stderr: file(c"errors").unwrap(),
                input: Some(File::open("/dev/null").unwrap()),
            };
            let one = Order {
                program: program.into(),
                args: args.iter().map(Into::into).collect(),
            };
            order(ours.as_fd(), &one, &files).unwrap();
            drop(files);
            let mut bytes = [0; Ended::BYTES];
            report.read_exact(&mut bytes).unwrap();
            Ended::from_bytes(bytes)
        };
        assert_eq!(ask("sh", &["-c", "true"]), Ended::Failed(libc::EACCES));
        assert_eq!(
            ask("/usr/local/sbin/ip6tables-legacy-save", &[]),
            Ended::Missing
        );
        assert!(matches!(
            ask("ss", &["--version"]),
            Ended::Status(_) | Ended::Missing
        ));
        passing::send(ours.as_fd(), b"no order", &[]).unwrap();
        let ended = serving.join().unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn an_order_keeps_its_words() {
        for args in [vec![], vec!["-c", "", "a b"]] {
            let order = Order {
                program: "nft".into(),
                args: args.iter().map(Into::into).collect(),
            };
            let files = || {
                let open = || File::open("/dev/null").unwrap().into();
                vec![open(), open(), open()]
            };
            let bytes = to_bytes(&order).unwrap();
            assert_eq!(from_message(&bytes, files()).unwrap().0, order);
            assert!(from_message(&bytes, Vec::new()).is_none());
        }
        let long = Order {
            program: "nft".into(),
            args: vec!["x".repeat(ORDER_MAX).into()],
        };
        assert!(to_bytes(&long).is_err());
    }
}

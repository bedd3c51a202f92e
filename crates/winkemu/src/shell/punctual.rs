//! What makes a thread punctual.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
};

use nix::sys::{
    mman::{MlockAllFlags, mlockall},
    prctl,
};

use super::{Priority, Realtime, sys};

/// Above the priorities of threaded interrupts (50) it would delay the network itself.
const REALTIME_PRIORITY: i32 = 40;

/// A thread that is as punctual as it may be.
#[derive(Debug, Default)]
pub struct Punctual {
    realtime: Option<Realtime>,
    /// As long as it is open, processors do not sleep.
    _wakefulness: Option<File>,
}

impl Punctual {
    /// Makes the calling thread as punctual as its priority says, with the least timer slack
    /// whatever that is. Processors that wait awake do so until this is dropped.
    pub fn thread(priority: Priority) -> Self {
        // It cannot fail: the value is one.
        let _ = prctl::set_timerslack(1);
        match priority {
            Priority::Ordinary => Self::default(),
            Priority::Preferred => {
                // What was not permitted shows in the lateness.
                let _ = sys::set_realtime(REALTIME_PRIORITY);
                Self::default()
            }
            Priority::Realtime => Self::realtime_thread(),
        }
    }

    fn realtime_thread() -> Self {
        let all = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE;
        let wakefulness = keep_processors_awake().ok();
        let realtime = Realtime {
            scheduled: sys::set_realtime(REALTIME_PRIORITY).is_ok(),
            locked: mlockall(all).is_ok(),
            awake: wakefulness.is_some(),
        };
        Self {
            realtime: Some(realtime),
            _wakefulness: wakefulness,
        }
    }

    /// What was permitted, where real time was asked for; what was not shows in the lateness.
    pub fn realtime(&self) -> Option<Realtime> {
        self.realtime
    }
}

/// Says that nobody can wait for a processor to wake up, by the kernel's interface for it
/// (Documentation/power/pm_qos_interface.rst): a virtual one may take milliseconds.
fn keep_processors_awake() -> io::Result<File> {
    const LATENCY_US: i32 = 0;
    let mut file = OpenOptions::new()
        .write(true)
        .open("/dev/cpu_dma_latency")?;
    file.write_all(&LATENCY_US.to_ne_bytes())?;
    Ok(file)
}

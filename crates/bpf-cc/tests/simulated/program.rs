//! A congestion control as a shared library, compiled from its source by the C compiler.

use std::{collections::BTreeMap, path::Path, process::Command};

use bpf_cc::Control;
use parking_lot::Mutex;

pub use sys::View;

/// A slow start threshold that was never set (`tcp_infinite_ssthresh`).
pub const INFINITE: u32 = 0x7fff_ffff;

/// One socket with a congestion control.
pub struct Socket {
    library: &'static sys::Library,
    memory: Vec<u64>,
    /// The socket fields that the control reads and sets.
    pub view: View,
}

impl Socket {
    /// Creates a socket whose handshake measured `srtt_us`, and initialises the control.
    pub fn new(control: Control, srtt_us: u32, stated_rate: u64) -> Self {
        Self::begin(control, srtt_us, stated_rate, [0, 0])
    }

    /// Creates a socket as [`new`](Self::new) does, with RTT0 stated.
    pub fn with_rtt0(control: Control, srtt_us: u32, rtt0_us: u32) -> Self {
        Self::begin(control, srtt_us, 0, [rtt0_us, 0])
    }

    /// Creates a socket as [`new`](Self::new) does, with a minimum of the retransmission timer.
    pub fn with_rto_min(control: Control, srtt_us: u32, rto_min_us: u32) -> Self {
        Self::begin(control, srtt_us, 0, [0, rto_min_us])
    }

    fn begin(control: Control, srtt_us: u32, stated_rate: u64, terms: [u32; 2]) -> Self {
        let [rtt0_us, rto_min_us] = terms;
        let library = library(control);
        let mut socket = Self {
            library,
            memory: vec![0; library.size().div_ceil(8)],
            view: View {
                now_us: 1_000_000,
                srtt_us: srtt_us.saturating_mul(8),
                rtt_us: srtt_us,
                stated_rate,
                rtt0_us,
                rto_min_us,
                delivered_at_us: 1_000_000,
                pacing_rate: u64::MAX,
                mss: 1448,
                window: 10,
                threshold: INFINITE,
                ..View::default()
            },
        };
        library.init(&mut socket.memory, &mut socket.view);
        socket
    }

    /// Delivers an acknowledgement with the values of the view.
    pub fn acknowledge(&mut self) {
        self.library.ack(&mut self.memory, &mut self.view);
    }

    /// Takes a timeout for spurious, as the kernel does before it delivers the acknowledgement.
    pub fn undo(&mut self) {
        self.library.undo(&mut self.memory, &mut self.view);
    }

    /// Changes the state of congestion control.
    pub fn enter(&mut self, state: u32) {
        self.view.state = state;
        self.library.state(&mut self.memory, &mut self.view);
    }
}

fn library(control: Control) -> &'static sys::Library {
    static LIBRARIES: Mutex<BTreeMap<Control, &'static sys::Library>> = Mutex::new(BTreeMap::new());
    let mut libraries = LIBRARIES.lock();
    libraries
        .entry(control)
        .or_insert_with(|| Box::leak(Box::new(compile(control))))
}

fn compile(control: Control) -> sys::Library {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let simulated = here.join("tests/simulated");
    let directory = tempfile::tempdir().unwrap();
    let object = directory.path().join("control.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wno-unknown-pragmas", "-o"])
        .arg(&object)
        .arg(format!("-DPROGRAM=\"{control}.bpf.c\""))
        .arg(format!("-DOPS=pepd_{control}"))
        .arg("-I")
        .arg(simulated.join("include"))
        .arg("-I")
        .arg(here.join("bpf"))
        .arg(simulated.join("driver.c"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{control}: {said}");
    sys::Library::open(&object)
}

mod sys {
    //! Bindings to the functions of `driver.c`.

    use std::{ffi::c_void, path::Path};

    /// The structure of the same name in `driver.c`.
    #[repr(C)]
    #[derive(Debug, Clone, Copy, Default)]
    pub struct View {
        pub now_us: u64,
        pub stated_rate: u64,
        pub pacing_rate: u64,
        pub interval_us: u64,
        pub delivered_at_us: u64,
        pub rtt0_us: u32,
        pub rto_min_us: u32,
        pub rto_min_set_us: u32,
        pub srtt_us: u32,
        pub rtt_us: u32,
        pub mss: u32,
        pub window: u32,
        pub threshold: u32,
        pub in_flight: u32,
        pub most_in_flight: u32,
        pub delivered: u32,
        pub prior_delivered: u32,
        pub acked: u32,
        pub lost: u32,
        pub sent: u32,
        pub state: u32,
        pub stamp_ms: u32,
    }

    type Step = unsafe extern "C" fn(*mut c_void, *mut View);

    pub struct Library {
        size: usize,
        init: Step,
        ack: Step,
        state: Step,
        undo: Step,
        // Keeps the functions loaded.
        _library: libloading::Library,
    }

    impl Library {
        pub fn open(path: &Path) -> Self {
            // SAFETY: the library was just compiled from driver.c; it has no initialisers.
            let library = unsafe { libloading::Library::new(path) }.unwrap();
            let step = |name: &str| -> Step {
                // SAFETY: driver.c defines these functions with this type.
                *unsafe { library.get::<Step>(name.as_bytes()) }.unwrap()
            };
            // SAFETY: as above.
            let size = unsafe { library.get::<unsafe extern "C" fn() -> usize>(b"simulated_size") }
                .unwrap();
            Self {
                // SAFETY: the function has no preconditions.
                size: unsafe { size() },
                init: step("simulated_init"),
                ack: step("simulated_ack"),
                state: step("simulated_state"),
                undo: step("simulated_undo"),
                _library: library,
            }
        }

        pub fn size(&self) -> usize {
            self.size
        }

        pub fn init(&self, socket: &mut [u64], view: &mut View) {
            self.call(self.init, socket, view);
        }

        pub fn ack(&self, socket: &mut [u64], view: &mut View) {
            self.call(self.ack, socket, view);
        }

        pub fn state(&self, socket: &mut [u64], view: &mut View) {
            self.call(self.state, socket, view);
        }

        pub fn undo(&self, socket: &mut [u64], view: &mut View) {
            self.call(self.undo, socket, view);
        }

        fn call(&self, step: Step, socket: &mut [u64], view: &mut View) {
            assert!(size_of_val(socket) >= self.size);
            // SAFETY: both are exclusively borrowed, aligned, and as large as the functions expect.
            unsafe { step(socket.as_mut_ptr().cast(), view) };
        }
    }
}

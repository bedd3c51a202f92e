//! The machines with pepd, their faults, and the state that must be restored afterwards.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    footprint::Footprint,
    host::Host,
    pep::Pep,
    raw::{Segment, flood},
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_within},
};
use splitmix::SplitMix64;

use crate::{
    custody::{Directory, MIB},
    survive::{crash, upgrade},
    tunnel::{PORT, SITE, STATED},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";
/// The duration of shortages and outages.
const WHILE: Duration = Duration::from_secs(3);

/// Two boats and a hub. The second boat's link is perfect for its kind.
pub struct Fleet<'a> {
    pub bed: &'a TunnelBed,
    directory: Directory,
    pub boat: Pep,
    pub hub: Pep,
    pub well: Pep,
    pub reloads: u64,
}

impl<'a> Fleet<'a> {
    pub fn start(bed: &'a TunnelBed) -> Self {
        let directory = Directory::new(bed, Some(64 * MIB));
        let both = bed.peer(End::Hub, End::SecondBoat);
        let hub = bed.config(End::Hub, STATED, "", &format!("{both}{ADMIN}"));
        // As in the systemd unit.
        let state = format!("[identity]\nstate = \"{}\"", directory.path().display());
        let hub = hub.replace("[identity]", &state);
        let hub = bed.start(End::Hub, &hub);
        let boat = bed.start(End::Boat, &Self::boat_config(bed, &directory, 0));
        let well = bed.config(End::SecondBoat, STATED, "", SITE);
        let well = bed.start(End::SecondBoat, &well);
        hub.wait_counter("tunnel_peers_up", |peers| peers == 2);
        Self {
            bed,
            directory,
            boat,
            hub,
            well,
            reloads: 0,
        }
    }

    fn boat_config(bed: &TunnelBed, directory: &Directory, reloads: u64) -> String {
        let custody = directory.path().join("custody");
        let more = format!(
            "{SITE}[[site]]\nname = \"mail\"\nmatch = {{ dport = [{}] }}\n{ADMIN}\
             [custody]\nfolder = \"{}\"\nmemory = \"8MiB\"\n",
            25 + reloads % 2,
            custody.display()
        );
        bed.config(End::Boat, STATED, "", &more)
    }

    pub fn at_bad_link(&self) -> [&Pep; 2] {
        [&self.boat, &self.hub]
    }

    /// Returns whether a fault affects the hub, and so all boats.
    pub const fn is_of_hub(turn: u64) -> bool {
        matches!(turn % 9, 1 | 3)
    }

    /// Runs one fault, of each kind in turn, to its end.
    pub fn suffer(&mut self, turn: u64, random: &mut SplitMix64) {
        match turn % 9 {
            0 => crash(&self.boat),
            1 => crash(&self.hub),
            2 => upgrade(&self.boat),
            3 => self.hub.succeed(),
            4 => self.reload(),
            5 => self.be_flooded(),
            6 => self.be_full(),
            7 => self.be_short(random),
            _ => {
                self.bed.cut_link();
                thread::sleep(WHILE);
                self.bed.restore_link();
            }
        }
    }

    pub fn reload(&mut self) {
        self.reloads += 1;
        let config = Self::boat_config(self.bed, &self.directory, self.reloads);
        fs::write(self.boat.path("pepd.toml"), config).expect("writable");
        let answer = self.boat.ask(&["reload"]);
        assert!(answer.contains("site.mail.match.dport"), "{answer}");
    }

    /// Floods with SYNs from an unassigned address.
    fn be_flooded(&self) {
        let to = self.bed.server_at(Family::V4, PORT);
        let from: IpAddr = "10.5.0.2".parse().expect("an address");
        let ports = 1024..=u16::MAX;
        let syns = ports.map(|port| Segment::opening(SocketAddr::new(from, port), to));
        let boat = self.bed.address("boat", Family::V4);
        flood(&self.bed.host("client"), boat, syns);
    }

    /// Fills the disk.
    fn be_full(&self) {
        let path = self.directory.path().join("others");
        let mut others = fs::File::create(&path).expect("a file");
        while others.write_all(&[1; 65_536]).is_ok() {}
        thread::sleep(WHILE);
        fs::remove_file(path).expect("the file is removable");
    }

    /// Exhausts descriptors.
    fn be_short(&self, random: &mut SplitMix64) {
        let left = random.below(20);
        self.boat
            .set_descriptor_limit(self.boat.descriptors() as u64 + left);
        thread::sleep(WHILE);
        self.boat.set_descriptor_limit(20_000);
    }
}

/// State that must be the same at the end as at the beginning.
#[derive(Debug)]
pub struct State {
    descriptors: [usize; 2],
    resident: u64,
    footprint: Footprint,
}

impl State {
    pub fn new(pep: &Pep, host: &Host) -> Self {
        let first = fs::read_dir(format!("/proc/{}/fd", pep.supervisor()));
        Self {
            descriptors: [pep.descriptors(), first.expect("it runs").count()],
            resident: pep.resident_bytes(),
            footprint: Footprint::measure(host),
        }
    }
}

/// Waits until flows have released their resources, and compares.
pub fn assert_nothing_leaks(before: &[State; 2], now: impl Fn() -> [State; 2]) {
    let mut after = now();
    // A flow's resources are released a moment after its end.
    let settled = wait_within(PATIENCE, || {
        after = now();
        let mut pairs = before.iter().zip(&after);
        let same = pairs.all(|(before, after)| {
            (0..2).all(|at| after.descriptors[at] <= before.descriptors[at] + 2)
        });
        same.then_some(())
    });
    for (before, after) in before.iter().zip(&after) {
        println!(
            "descriptors of the process that carries flows and of the first one {:?}, before {:?}; {} of {} KiB resident",
            after.descriptors,
            before.descriptors,
            after.resident >> 10,
            before.resident >> 10
        );
        let changed = after.footprint.difference(&before.footprint);
        let changed: Vec<_> = changed.iter().filter(|line| !is_counted(line)).collect();
        assert!(changed.is_empty(), "{changed:#?}");
        assert!(after.resident < before.resident + 48 * MIB, "{after:?}");
    }
    assert!(settled.is_some(), "descriptors");
}

/// Returns whether a line of the rules changes by itself: counters, and elements of sets with a
/// timeout.
fn is_counted(line: &str) -> bool {
    ["packets", "expires", "elements", "}"]
        .iter()
        .any(|word| line.contains(word))
}

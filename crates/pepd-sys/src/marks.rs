//! What the marks mean by which our packets and sockets are told apart.

use pep_core::config::Marks;

/// The marks that tell our packets and sockets apart, within the configured mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkSet(Marks);

impl MarkSet {
    /// The marks of this configuration.
    pub const fn new(marks: Marks) -> Self {
        Self(marks)
    }

    /// Of sockets that face hosts: listeners, what they accept, and the raw sockets on which
    /// we answer in a network's name.
    pub fn client_leg(self) -> u32 {
        self.nth(0)
    }

    /// Of sockets that face servers.
    pub fn server_leg(self) -> u32 {
        self.nth(1)
    }

    /// Of a host's SYN that we send on as it came.
    pub fn passed(self) -> u32 {
        self.nth(2)
    }

    /// Of packets that are delivered to us whatever their address.
    pub fn local(self) -> u32 {
        self.nth(3)
    }

    /// Of packets that go into the TUN of LAN interface `lan`.
    ///
    /// # Panics
    /// When there is no such interface; the configuration is checked for the mask's room.
    pub fn hold(self, lan: usize) -> u32 {
        self.nth(Marks::FIXED as usize + lan)
    }

    /// As [`hold`](Self::hold); `None` where the mask has no room for so many.
    pub fn hold_if_any(self, lan: u32) -> Option<u32> {
        self.0.get(Marks::FIXED.checked_add(lan)?)
    }

    /// Of packets that go into the TUN of the site of mode `packet` with this number, where there
    /// are so many LAN interfaces.
    ///
    /// # Panics
    /// When the mask has no room for it; the configuration is checked for that.
    pub fn packet(self, lans: usize, number: usize) -> u32 {
        self.nth(Marks::FIXED as usize + lans + number)
    }

    /// A number for one of our marks, other than those for the marks of other pepds on the machine,
    /// which have other marks within a mask of at most 16 bits.
    pub const fn number(self, mark: u32) -> u16 {
        (mark >> self.mask().trailing_zeros()) as u16
    }

    /// The bits of a mark that are ours.
    pub const fn mask(self) -> u32 {
        self.0.mask()
    }

    fn nth(self, index: usize) -> u32 {
        u32::try_from(index)
            .ok()
            .and_then(|index| self.0.get(index))
            .expect("the configuration leaves room for all marks")
    }
}

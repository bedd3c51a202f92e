//! Marks of pepd's packets and sockets.

use pep_core::config::Marks;

/// The mark that other programs have set on one SYN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OtherMark {
    /// Bits of the mark that do not belong to pepd; 0 for none.
    pub mark: u32,
    /// True if the route with this mark leaves by another interface than the link.
    pub is_off_link: bool,
}

/// The marks of pepd's packets and sockets, within the configured mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkSet(Marks);

impl MarkSet {
    /// Returns the marks of a configuration.
    pub const fn new(marks: Marks) -> Self {
        Self(marks)
    }

    /// Returns the mark of sockets that face hosts: listeners, accepted sockets, and the raw
    /// sockets for answers in a network's name.
    pub fn client_leg(self) -> u32 {
        self.nth(0)
    }

    /// Returns the mark of sockets that face servers.
    pub fn server_leg(self) -> u32 {
        self.nth(1)
    }

    /// Returns the mark of a host's SYN that pepd sends on unchanged.
    pub fn passed(self) -> u32 {
        self.nth(2)
    }

    /// Returns the mark of packets for local delivery, whatever their address.
    pub fn local(self) -> u32 {
        self.nth(3)
    }

    /// Returns the mark of packets routed into the TUN of LAN interface `lan`.
    ///
    /// # Panics
    /// When there is no such interface; validation ensures that the mask has room.
    pub fn hold(self, lan: usize) -> u32 {
        self.nth(Marks::FIXED as usize + lan)
    }

    /// Returns the mark as [`hold`](Self::hold) does; `None` if the mask has no room for it.
    pub fn hold_if_any(self, lan: u32) -> Option<u32> {
        self.0.get(Marks::FIXED.checked_add(lan)?)
    }

    /// Returns the mark of packets routed into the TUN of the `number`-th site of mode `packet`,
    /// after those of `lans` LAN interfaces.
    ///
    /// # Panics
    /// When the mask has no room for it; validation ensures that.
    pub fn packet(self, lans: usize, number: usize) -> u32 {
        self.nth(Marks::FIXED as usize + lans + number)
    }

    /// Returns a number for a mark, unique among all pepds of the machine: they use other marks
    /// within a mask of at most 16 bits.
    pub const fn number(self, mark: u32) -> u16 {
        (mark >> self.mask().trailing_zeros()) as u16
    }

    /// Returns the bits of a mark that belong to pepd.
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

//! Bodies of the fuzz targets, as a library that a plain test also runs (tests/seeds.rs).
//!
//! `scripts/fuzz` runs the targets.

pub mod admission;
pub mod block;
pub mod boosters;
pub mod carried;
pub mod chains;
pub mod compression;
pub mod conversation;
pub mod endpoint;
pub mod frames;
pub mod link;
pub mod packets;
pub mod session;
mod shapes;
pub mod window;

use fec::wire::{Header, HeaderError};

/// Checks for arbitrary bytes that a parsed header is written back unchanged, at its stated length.
pub fn header(packet: &[u8]) {
    match Header::parse(packet) {
        Ok((header, payload)) => {
            assert_eq!(header.len() + payload.len(), packet.len());
            assert!(header.len() <= Header::LEN_MAX);
            let mut emitted = Vec::new();
            header.emit(&mut emitted);
            assert_eq!(emitted, packet[..header.len()]);
        }
        Err(HeaderError::Short(length)) => {
            assert_eq!(length, packet.len());
            assert!(length < Header::LEN_MAX);
        }
        Err(HeaderError::Unknown(kind)) => assert_eq!(kind, packet[0]),
        Err(HeaderError::Range { .. }) => {}
    }
}

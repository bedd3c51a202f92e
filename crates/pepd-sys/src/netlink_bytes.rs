//! Messages of netlink as bytes (netlink(7)): requests, and answers of several parts.

use std::io;

/// Length of a `struct nlmsghdr`, in bytes.
pub const HEADER_BYTES: usize = 16;

/// `NLA_TYPE_MASK` of `include/uapi/linux/netlink.h`: the type of an attribute without its flags.
const TYPE: u16 = 0x3fff;

/// Returns a request of this type, with `body` behind its header. The kernel needs no port, and no
/// sequence number where a socket is used once.
pub fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = (HEADER_BYTES + body.len()) as u32;
    let mut request = length.to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.resize(HEADER_BYTES, 0);
    request.extend(body);
    request
}

/// Iterates over the messages in these bytes: type, and contents behind the header. A truncated
/// message ends the iteration.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Iterates over the attributes in these bytes, in the same way.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & TYPE, value))
    })
}

/// Returns the code of an error message, which is negative on the wire.
///
/// # Errors
/// `InvalidData` when it has none.
pub fn error(body: &[u8]) -> io::Result<i32> {
    let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code));
    let code = code.and_then(i32::checked_neg);
    code.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Takes the messages of type `wanted` in one part of a dump. Returns true for the last part.
///
/// # Errors
/// The kernel's error; `InvalidData` when the part has no message.
pub fn take_dump(answer: &[u8], wanted: u16, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
    let mut is_empty = true;
    for (kind, body) in messages(answer) {
        is_empty = false;
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => return Err(io::Error::from_raw_os_error(error(body)?)),
            _ if kind == wanted => each(body),
            _ => {}
        }
    }
    match is_empty {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(false),
    }
}

//! Messages with descriptors between processes (unix(7), `SCM_RIGHTS`).

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
};

use nix::{
    cmsg_space,
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
        sendmsg, socketpair,
    },
};

/// The maximum number of descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 4;

/// Returns two connected sockets that keep messages apart, closed on exec. The end of one is seen
/// by the other.
///
/// # Errors
/// Fails without descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        flags,
    )?)
}

/// Sends a message without waiting.
///
/// # Errors
/// `WouldBlock` while the other end reads too slowly, `BrokenPipe` after its end. `InvalidInput`
/// with more than [`DESCRIPTORS_MAX`] descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let parts = [IoSlice::new(bytes)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, rights, flags, None)?;
    Ok(())
}

/// Waits for the next message. Returns its length, and its descriptors, closed on exec; `None`
/// after the end of the other process. A message of zero bytes counts as the end.
///
/// # Errors
/// `InvalidData` if the message is longer than the buffer, or has more descriptors than
/// [`DESCRIPTORS_MAX`]. Fails without descriptors for those received.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = loop {
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags);
        match received {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for rights in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = rights {
            // SAFETY: the kernel has just created these descriptors, which have no other owner.
            let owned = numbers
                .into_iter()
                .map(|number| unsafe { OwnedFd::from_raw_fd(number) });
            descriptors.extend(owned);
        }
    }
    if message
        .flags
        .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC)
    {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((message.bytes > 0).then_some((message.bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{ErrorKind, Read as _, Write as _},
        os::fd::AsFd as _,
    };

    use super::*;

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (ours, theirs) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let (sent, mut buffer) = ([writer.as_fd()], [0; 16]);
        send(ours.as_fd(), b"first", &sent).unwrap();
        send(ours.as_fd(), b"second", &[]).unwrap();
        let (length, descriptors) = receive(theirs.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"first");
        drop(writer);
        let [received] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
        File::from(received).write_all(b"through it").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
        let (length, descriptors) = receive(theirs.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..length], descriptors.len()), (&b"second"[..], 0));
        drop(ours);
        assert!(receive(theirs.as_fd(), &mut buffer).unwrap().is_none());
        let refused = send(theirs.as_fd(), b"x", &[]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_never_cut() {
        let (ours, theirs) = pair().unwrap();
        send(ours.as_fd(), b"too long", &[ours.as_fd()]).unwrap();
        let refused = receive(theirs.as_fd(), &mut [0; 4]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        let many = [ours.as_fd(); DESCRIPTORS_MAX + 1];
        let refused = send(ours.as_fd(), b"x", &many).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

//! Tests on another kernel, in an emulated machine.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
};

use bpf_cc::{Control, Loaded};
use pepd_tests::guest::{self, Guest};
use socket2::{Domain, SockRef, Socket, Type};

fn release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").expect("every Linux has it")
}

/// Opens a loopback connection with a congestion control; returns both ends.
fn connection(congestion: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address: SocketAddr = listener.local_addr().expect("it is bound");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor is left");
    socket
        .set_tcp_congestion(congestion.as_bytes())
        .expect("the kernel has it");
    socket.connect(&address.into()).expect("a listener");
    let (accepted, _) = listener.accept().expect("a connection");
    (socket.into(), accepted)
}

/// Sends a megabyte over a connection with this congestion control.
fn carry(congestion: &str) {
    let (mut near, mut far) = connection(congestion);
    let sent: Vec<u8> = (0..1_000_000).map(|k| k as u8).collect();
    let mut received = vec![0; sent.len()];
    thread::scope(|scope| {
        let writer = scope.spawn(|| near.write_all(&sent));
        far.read_exact(&mut received).expect("all is sent");
        writer.join().expect("no panic").expect("all is taken");
    });
    assert!(received == sent, "other bytes than were sent");
    let name = SockRef::from(&near).tcp_congestion().expect("it is TCP");
    let name = name.split(|&byte| byte == 0).next();
    assert_eq!(name, Some(congestion.as_bytes()));
}

#[test]
fn native_hybla_and_all_of_pepds_controls_serve_sockets_of_another_kernel() {
    if !guest::inside() {
        let test = "native_hybla_and_all_of_pepds_controls_serve_sockets_of_another_kernel";
        return Guest::new()
            .modules(&["tcp_hybla"])
            .run_test(&format!("other_kernel::{test}"));
    }
    assert!(release().starts_with("6.12."), "{}", release());

    let ours = Loaded::load(&Control::ALL).expect("6.12 has all that they need");
    assert_eq!(ours.name_of(Control::Hybla), Some("hybla_bpf"));
    carry("hybla");
    for (_, name) in ours.names() {
        carry(name);
    }
}

#[test]
fn a_guest_gives_back_output_status_and_shared_files_and_keeps_the_rest() {
    let shared = tempfile::tempdir().expect("a temporary directory can be made");
    let hidden = tempfile::tempdir().expect("a temporary directory can be made");
    let script = "uname -nr; echo warned >&2; echo kept >$0/file; echo lost >$1/file; exit 7";
    let [kept, lost] = [&shared, &hidden].map(|dir| dir.path().join("file"));
    let directories = [&shared, &hidden].map(|dir| dir.path().to_str().expect("made of letters"));

    let guest = Guest::new().share(shared.path());
    let args = ["-c", script, directories[0], directories[1]];
    let Some(output) = guest.run(Path::new("/bin/sh"), &args) else {
        return;
    };

    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{out}{err}");
    assert!(out.starts_with("guest 6.12."), "{out}");
    // Messages about a kernel that must be downloaded come first.
    assert!(err.ends_with("warned\n"), "{err}");
    assert_eq!(fs::read_to_string(kept).expect("it is shared"), "kept\n");
    assert!(!lost.exists(), "the guest wrote to this machine's files");
}

//! Programs on the running kernel. Needs root.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
    time::Duration,
};

use bpf_cc::{Control, Loaded, SocketTerms, kernel};
use parking_lot::Mutex;
use socket2::{Domain, SockRef, Socket, Type};

fn choose(socket: &Socket, name: &str) -> std::io::Result<()> {
    socket.set_tcp_congestion(name.as_bytes())
}

fn socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()
}

fn name_in_use(stream: &TcpStream) -> String {
    let name = SockRef::from(stream).tcp_congestion().unwrap();
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    String::from_utf8(name[..end].to_vec()).unwrap()
}

/// Returns both ends of a loopback connection whose client uses `name`.
fn connected(name: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = socket();
    choose(&socket, name).unwrap();
    socket
        .connect(&listener.local_addr().unwrap().into())
        .unwrap();
    (socket.into(), listener.accept().unwrap().0)
}

/// Sends `bytes` bytes from one end to the other, and checks their contents.
fn carry(mut from: TcpStream, mut to: TcpStream, bytes: usize) -> (TcpStream, TcpStream) {
    let sender = thread::spawn(move || {
        let data: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        from.write_all(&data).unwrap();
        from
    });
    let mut got = vec![0; bytes];
    to.read_exact(&mut got).unwrap();
    assert!(got.iter().enumerate().all(|(n, &byte)| byte == n as u8));
    (sender.join().unwrap(), to)
}

/// A lock for registered names, which are global to the machine: tests must not reuse them at once.
static NAMES: Mutex<()> = Mutex::new(());

#[test]
fn every_control_loads_and_carries_bytes() {
    let _alone = NAMES.lock();
    let loaded = Loaded::load(&Control::ALL).unwrap();
    for control in Control::ALL {
        let name = loaded.name_of(control).unwrap();
        let (client, server) = connected(name);
        assert_eq!(name_in_use(&client), name);
        let (client, _server) = carry(client, server, 4 << 20);
        assert_eq!(name_in_use(&client), name);
    }
}

#[test]
fn the_same_control_twice_gets_two_names() {
    let first = Loaded::load(&[Control::Vegas]).unwrap();
    let second = Loaded::load(&[Control::Vegas]).unwrap();
    let names = [&first, &second].map(|l| l.name_of(Control::Vegas).unwrap().to_owned());
    assert_ne!(names[0], names[1]);
    drop(first);
    // The second control does not depend on the first.
    choose(&socket(), &names[1]).unwrap();
    assert!(kernel::available().unwrap().contains(&names[1]));
}

#[test]
fn a_control_leaves_its_name_to_the_kernels() {
    let mut loaded = Loaded::default();
    let name = loaded.add_beside(Control::Westwood).unwrap().to_owned();
    assert!(name.starts_with("westwood_bpf"), "{name}");
    choose(&socket(), &name).unwrap();
}

#[test]
fn sockets_outlive_what_loaded_their_control() {
    let _alone = NAMES.lock();
    let loaded = Loaded::load(&[Control::HyblaSat]).unwrap();
    let name = loaded.name_of(Control::HyblaSat).unwrap().to_owned();
    let (client, server) = connected(&name);
    let (client, server) = carry(client, server, 1 << 20);
    drop(loaded);
    assert!(
        choose(&socket(), &name).is_err(),
        "an unregistered control cannot be chosen"
    );
    assert_eq!(name_in_use(&client), name);
    carry(client, server, 1 << 20);
}

#[test]
fn terms_are_stated_per_socket() {
    let loaded = Loaded::load(&[Control::Hybla, Control::Vegas]).unwrap();
    let terms = SocketTerms {
        rtt0: Duration::from_millis(5),
        rto_min: None,
    };
    for control in [Control::Hybla, Control::Vegas] {
        loaded.state(control, socket().as_fd(), &terms).unwrap();
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(loaded.state(Control::Hybla, file.as_fd(), &terms).is_err());
}

#[test]
fn asking_for_nothing_needs_nothing() {
    let loaded = Loaded::load(&[]).unwrap();
    assert_eq!(loaded.names().count(), 0);
    assert_eq!(loaded.name_of(Control::Hybla), None);
}

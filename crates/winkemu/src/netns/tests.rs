use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Stdio,
    time::Duration,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn pair() -> (Netns, Netns) {
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    a.add_veth("left", &b, "right").unwrap();
    a.add_address("left", "10.0.0.1/24".parse().unwrap())
        .unwrap();
    b.add_address("right", "10.0.0.2/24".parse().unwrap())
        .unwrap();
    a.add_address("left", "fd00::1/64".parse().unwrap())
        .unwrap();
    b.add_address("right", "fd00::2/64".parse().unwrap())
        .unwrap();
    a.set_up("left").unwrap();
    b.set_up("right").unwrap();
    (a, b)
}

fn talk(a: &Netns, b: &Netns, address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let listener = b.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    let connect = || TcpStream::connect_timeout(&address, PATIENCE);
    a.enter(connect)
        .unwrap()
        .unwrap()
        .write_all(b"hello")
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn namespaces_joined_by_veth_talk_at_once_over_both_families() {
    let (a, b) = pair();
    talk(&a, &b, "10.0.0.2:80");
    talk(&a, &b, "[fd00::2]:80");
}

#[test]
fn routes_and_settings_are_of_their_namespace() {
    let (a, b) = pair();
    let host = "10.9.9.9/32".parse().unwrap();
    b.add_address("lo", host).unwrap();
    a.add_route(host, Some("10.0.0.2".parse().unwrap()), None)
        .unwrap();
    talk(&a, &b, "10.9.9.9:80");
    a.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    assert_eq!(a.sysctl("net.ipv4.ip_forward").unwrap(), "1");
    assert_eq!(b.sysctl("net.ipv4.ip_forward").unwrap(), "0");
}

#[test]
fn offloads_and_mtu_can_be_set() {
    let (a, b) = pair();
    a.set_offloads("left", false).unwrap();
    a.set_mtu("left", 1400).unwrap();
    talk(&a, &b, "10.0.0.2:80");
    let err = a.set_offloads("absent", false).unwrap_err();
    assert!(err.to_string().contains("absent"), "{err}");
}

#[test]
fn errors_say_what_was_refused() {
    let a = Netns::new().unwrap();
    let text = a.set_up("nowhere").unwrap_err().to_string();
    assert_eq!(text, "cannot set up nowhere: no interface nowhere");
    let text = a
        .add_veth("a-name-that-is-too-long", &a, "b")
        .unwrap_err()
        .to_string();
    assert!(text.contains("1 to 15 bytes"), "{text}");
    let text = a
        .set_sysctl("net.ipv4.no_such", "1")
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("cannot set net.ipv4.no_such to `1`"),
        "{text}"
    );
    assert!(matches!(
        Netns::by_name("no-such-netns"),
        Err(NetnsError::Open { .. })
    ));
}

#[test]
fn a_namespace_is_found_by_the_process_in_it() {
    let (a, _b) = pair();
    let sleeper = Process::spawn(a.command("sleep").arg("60")).unwrap();
    let found = Netns::by_pid(sleeper.id()).unwrap();
    assert!(found.interfaces().unwrap().contains(&"left".to_owned()));
}

#[test]
fn a_panic_inside_reaches_the_caller() {
    let a = Netns::new().unwrap();
    let outcome = panic::catch_unwind(|| a.enter(|| panic!("inside")));
    assert_eq!(*outcome.unwrap_err().downcast::<&str>().unwrap(), "inside");
}

#[test]
fn a_command_runs_inside_and_its_exit_is_seen() {
    let (a, _b) = pair();
    let mut command = a.command("sh");
    let command = command
        .args(["-c", "cat /proc/net/dev; exit 7"])
        .stdout(Stdio::piped());
    let mut process = Process::spawn(command).unwrap();
    let mut text = String::new();
    process
        .pipes()
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.contains("left:"), "{text}");
    assert_eq!(process.wait(PATIENCE).unwrap().unwrap().code(), Some(7));
}

#[test]
fn a_wait_gives_up_at_its_timeout_and_a_kill_ends_it() {
    let a = Netns::new().unwrap();
    let mut process = Process::spawn(a.command("sleep").arg("60")).unwrap();
    assert_eq!(process.wait(Duration::from_millis(20)).unwrap(), None);
    assert!(
        process.stop(PATIENCE).unwrap().code().is_none(),
        "SIGTERM has no code"
    );
}

#[test]
fn dropping_a_process_kills_its_descendants() {
    let a = Netns::new().unwrap();
    let mut command = a.command("sh");
    let command = command
        .args(["-c", "sleep 61 & echo $!; wait"])
        .stdout(Stdio::piped());
    let mut process = Process::spawn(command).unwrap();
    let mut out = BufReader::new(process.pipes().stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(Path::new("/proc").join(line.trim()).exists());
    drop(process);
    // The pipe closes when the last process that holds it has ended.
    assert_eq!(out.read_to_string(&mut String::new()).unwrap(), 0);
}

#[test]
fn a_program_spawned_from_a_short_lived_thread_lives_on() {
    let a = Netns::new().unwrap();
    let inside = a.clone();
    let spawn = move || Process::spawn(inside.command("sleep").arg("60")).unwrap();
    let mut process = thread::spawn(spawn).join().unwrap();
    assert_eq!(process.wait(Duration::from_millis(100)).unwrap(), None);
}

#[test]
fn a_missing_program_is_an_error_and_the_next_one_starts() {
    let a = Netns::new().unwrap();
    let err = Process::spawn(&mut a.command("/no/such/program")).unwrap_err();
    assert_eq!(err.kind(), std::io::ErrorKind::NotFound);
    let mut process = Process::spawn(&mut a.command("true")).unwrap();
    assert!(process.wait(PATIENCE).unwrap().unwrap().success());
}

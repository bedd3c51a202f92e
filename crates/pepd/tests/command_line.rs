//! Output of `pepd check` and other commands.

use std::{
    fs,
    process::{Command, Output, Stdio},
};

fn pepd(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pepd"));
    command.args(arguments).output().expect("pepd starts")
}

fn check(text: &str) -> (String, Output) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), text).expect("writable");
    let path = file.path().to_str().expect("text").to_owned();
    let output = pepd(&["check", "--config", &path]);
    (path, output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns the path of a file in a directory, as text for a command line.
fn path_in(directory: &tempfile::TempDir, name: &str) -> String {
    let path = directory.path().join(name);
    path.to_str().expect("text").to_owned()
}

#[test]
fn every_error_is_a_line_with_file_line_and_key() {
    let (path, output) = check("[intercept]\nlan = []\nlisten_port = 0\n");
    assert_eq!(output.status.code(), Some(3));
    let errors = text(&output.stderr);
    let lines: Vec<_> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines[0].starts_with(&format!("{path}:2: intercept.lan: empty;")),
        "{errors}"
    );
    assert_eq!(
        lines[1],
        format!("{path}:3: intercept.listen_port: 0 is out of range; accepted: 1 to 65535")
    );
}

#[test]
fn a_file_that_is_no_text_is_distinguished_from_a_missing_one() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), b"[intercept]\nlan = \"\xe9th0\"\n").expect("writable");
    let path = file.path().to_str().expect("text");
    let output = pepd(&["check", "--config", path]);
    assert_eq!(output.status.code(), Some(3));
    let expected = format!("{path}:2: (no key): byte 0xe9 is not UTF-8");
    assert!(text(&output.stderr).starts_with(&expected), "{output:?}");
}

/// Runs pepd with a configuration for another machine.
fn on_another_machine(arguments: &[&str], stdout: impl Into<Stdio>) -> Output {
    let site = "[[site]]\nname = \"a\"\ncongestion = [\"nonesuch\"]\n";
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let config = format!("[intercept]\nlan = [\"nonesuch0\"]\n{site}");
    fs::write(file.path(), config).expect("writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pepd"));
    command.args(arguments).arg("--config").arg(file.path());
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn();
    child
        .expect("pepd starts")
        .wait_with_output()
        .expect("ends")
}

#[test]
fn rules_and_a_check_without_the_kernel_do_not_depend_on_this_machine() {
    for arguments in [&["rules"][..], &["check", "--no-kernel"]] {
        let output = on_another_machine(arguments, Stdio::piped());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
    let output = on_another_machine(&["check"], Stdio::piped());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_unless_the_reader_has_closed_it() {
    for arguments in [&["rules"][..], &["check", "--no-kernel"]] {
        let full = fs::File::options().write(true).open("/dev/full");
        let output = on_another_machine(arguments, full.expect("/dev/full"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let message = text(&output.stderr);
        assert!(
            message.contains("cannot write to standard output: No space"),
            "{message}"
        );

        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = on_another_machine(arguments, writer);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn what_the_kernel_lacks_is_an_error_like_any_other() {
    let site = "[intercept]\nlan = [\"lo\"]\n[[site]]\nname = \"a\"\ncongestion = [\"nonesuch\"]\n";
    let (path, output) = check(site);
    assert_eq!(output.status.code(), Some(3));
    let errors = text(&output.stderr);
    let expected = format!(
        "{path}:5: site[1].congestion: no congestion control is available: `nonesuch` is not known; \
         the kernel has "
    );
    assert!(
        errors.lines().any(|line| line.starts_with(&expected)),
        "{errors}"
    );
}

#[test]
fn a_valid_file_is_summed_up_with_buffers_from_the_link() {
    let (_, output) = check(
        "[intercept]\nlan = [\"nonesuch0\"]\n[link]\ninterface = \"lo\"\nrate = \"10Mbit/s\"\n\
         rtt = \"600ms\"\n[[site]]\nname = \"office\"\nmatch = { dport = [80, \"8000-8100\"] }\n\
         congestion = [\"nonesuch\", \"reno\"]\n",
    );
    let summary = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in [
        "ports 5000 to 5001, one per site\n",
        "bandwidth-delay product 732 KiB",
        "dport 80, 8000-8100",
        "reno (kernel; first available of: nonesuch, reno)",
        "send buffer 2.86 MiB, receive buffer autotuned up to 64.0 MiB",
        "paced at 10Mbit/s",
        "  1. office",
        "  2. default",
    ] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    let warnings = text(&output.stderr);
    assert!(
        warnings.contains(":2: intercept.lan: interface `nonesuch0` does not exist"),
        "{warnings}"
    );
}

#[test]
fn a_check_names_the_skipped_controls_and_the_origin_of_the_chosen_one() {
    let (path, output) = check(
        "[intercept]\nlan = [\"lo\"]\n[[site]]\nname = \"a\"\ncongestion = [\"hylba\", \"hybla_sat\"]\n",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let note = format!(
        "note: {path}:5: site[1].congestion: congestion control hylba is not available, using hybla_sat instead: \
         neither the kernel nor pepd has it (did you mean hybla?)"
    );
    let notes = text(&output.stderr);
    assert!(notes.lines().any(|line| line == note), "{notes}");
    let summary = text(&output.stdout);
    let chosen = "congestion hybla_sat (eBPF of pepd; first available of: hylba, hybla_sat)";
    assert!(summary.contains(chosen), "{summary}");
}

#[test]
fn controls_are_listed_for_people_and_for_programs() {
    let table = pepd(&["cc", "list"]);
    assert_eq!(table.status.code(), Some(0), "{table:?}");
    let table = text(&table.stdout);
    let json = pepd(&["cc", "list", "--json"]);
    assert_eq!(json.status.code(), Some(0), "{json:?}");
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    for (name, kinds) in [
        ("reno", &["kernel"][..]),
        // Other tests may have registered the name meanwhile.
        ("hybla_sat", &["ebpf", "taken"]),
    ] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{table}");
        let entries = json.as_array().expect("a list").iter();
        let mut entries = entries.filter(|entry| entry["name"] == name);
        let kind = entries.next().expect("listed")["kind"].clone();
        assert!(
            kinds.contains(&kind.as_str().expect("text")),
            "{name}: {kind}"
        );
    }
}

#[test]
fn a_missing_file_and_a_wrong_command_line_have_their_own_codes() {
    let missing = pepd(&["check", "--config", "/nonexistent/pepd.toml"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("/nonexistent/pepd.toml: cannot be read"));
    assert_eq!(pepd(&["chekc"]).status.code(), Some(2));
    assert_eq!(pepd(&["--help"]).status.code(), Some(0));
}

#[test]
fn keys_are_made_shown_and_never_overwritten_by_accident() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| path_in(&directory, name);
    let (key, psk) = (path("a.key"), path("a.psk"));
    let made = pepd(&["keygen", "--out", &key]);
    assert_eq!(made.status.code(), Some(0), "{made:?}");
    let public = text(&made.stdout);
    assert!(public.len() == 45 && public.ends_with("=\n"), "{public:?}");
    assert_eq!(text(&pepd(&["keygen", "--public", &key]).stdout), public);

    let again = pepd(&["keygen", "--out", &key]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(text(&again.stderr).contains("a.key: exists already; --force"));
    assert!(again.stdout.is_empty(), "{again:?}");
    let forced = pepd(&["keygen", "--force", "--out", &key]);
    assert_ne!(text(&forced.stdout), public);

    let shared = pepd(&["keygen", "--psk", &psk]);
    assert_eq!(shared.status.code(), Some(0), "{shared:?}");
    assert!(shared.stdout.is_empty(), "a shared key is not shown");
    assert_eq!(fs::read_to_string(&psk).expect("written").len(), 45);
    assert_eq!(
        pepd(&["keygen", "--psk", &psk, "--public", &key])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn an_invalid_key_file_is_reported_without_its_contents() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.key");
    fs::write(&path, "hush\n").expect("writable");
    let output = pepd(&["keygen", "--public", path.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = text(&output.stderr);
    assert!(
        message.contains("a.key: not a key; expected 32 bytes"),
        "{message}"
    );
    assert!(!message.contains("hush"), "{message}");
}

#[test]
fn what_is_no_configuration_file_is_not_read_to_its_end() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let long = "# \n".repeat(3 << 19);
    fs::write(file.path(), long).expect("writable");
    let path = file.path().to_str().expect("text");
    for path in ["/dev/zero", path] {
        let output = pepd(&["check", "--config", path]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{error}");
        let expected = "exceeds the maximum of 4MiB for a configuration";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_key_file_that_cannot_be_read_is_not_to_be_made_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("pepd.key")).expect("a directory");
    let output = with_a_peer(directory.path(), OTHER_KEY, "");
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    let about = |key: &str| errors.lines().find(|line| line.contains(key));
    let own = about("identity.key_file").expect("an error");
    assert!(
        own.contains("chmod 600") && !own.contains("keygen"),
        "{own}"
    );
    let shared = about("peer.hub.psk_file").expect("an error");
    assert!(shared.contains("`pepd keygen --psk FILE`"), "{shared}");
}

#[test]
fn a_check_names_the_transports_of_peers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| path_in(&directory, name);
    pepd(&["keygen", "--out", &path("pepd.key")]);
    let check = |carrier: &str| {
        let config = format!(
            "[intercept]\nlan = [\"lo\"]\n[identity]\nkey_file = \"pepd.key\"\n\
             listen = \"0.0.0.0:5001\"\n[peer.hub]\npublic_key = \"{OTHER_KEY}\"\ncarrier = \"{carrier}\"\n"
        );
        fs::write(path("pepd.toml"), config).expect("writable");
        text(&pepd(&["check", "--config", &path("pepd.toml")]).stdout)
    };
    let (both, one) = (check("auto"), check("udp"));
    assert!(both.contains("by UDP and TCP at 0.0.0.0:5001"), "{both}");
    assert!(one.contains("by UDP at 0.0.0.0:5001"), "{one}");
}

/// Runs pepd with a peer, in a directory of its own with its keys.
fn with_a_peer(directory: &std::path::Path, public_key: &str, more: &str) -> Output {
    let path = directory.join("pepd.toml");
    let config = format!(
        "[intercept]\nlan = [\"lo\"]\n[identity]\nkey_file = \"pepd.key\"\n[peer.hub]\n\
         endpoint = \"192.0.2.1:5001\"\npublic_key = \"{public_key}\"\npsk_file = \"hub.psk\"\n{more}"
    );
    fs::write(&path, config).expect("writable");
    pepd(&["check", "--config", path.to_str().expect("text")])
}

const OTHER_KEY: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

#[test]
fn a_check_needs_the_keys_and_shows_the_tunnel() {
    let directory = tempfile::tempdir().expect("a directory");
    let tunnel = "[[site]]\nname = \"a\"\nmode = \"tunnel\"\npeer = \"hub\"\nclass = \"bulk\"\n";
    let output = with_a_peer(directory.path(), OTHER_KEY, tunnel);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = text(&output.stderr);
    for (line, key, file) in [
        (4, "identity.key_file", "pepd.key"),
        (8, "peer.hub.psk_file", "hub.psk"),
    ] {
        let place = format!("pepd.toml:{line}: {key}: ");
        let error = errors.lines().find(|error| error.contains(&place));
        let error = error.unwrap_or_else(|| panic!("{place} in {errors}"));
        assert!(
            error.contains(&format!("{file}: cannot be read: ")),
            "{error}"
        );
        assert!(error.contains("pepd keygen"), "{error}");
    }

    let path = |name: &str| path_in(&directory, name);
    let public = text(&pepd(&["keygen", "--out", &path("pepd.key")]).stdout);
    pepd(&["keygen", "--psk", &path("hub.psk")]);
    let output = with_a_peer(directory.path(), OTHER_KEY, tunnel);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary = text(&output.stdout);
    for part in [
        &format!("public key {}", public.trim()),
        "hub: at 192.0.2.1:5001, with a preshared key, measured rate",
        "tunnel to hub, class bulk; split while the peer is down; port 5000",
    ] {
        assert!(summary.contains(part), "{part} in {summary}");
    }

    let output = with_a_peer(directory.path(), public.trim(), tunnel);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(
        errors.contains(":7: peer.hub.public_key: is the local public key"),
        "{errors}"
    );
}

#[test]
fn a_check_describes_custody_and_link_detection() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| path_in(&directory, name);
    pepd(&["keygen", "--out", &path("pepd.key")]);
    pepd(&["keygen", "--psk", &path("hub.psk")]);
    let more = "[[site]]\nname = \"a\"\nmode = \"tunnel\"\npeer = \"hub\"\nhold = \"6h\"\nclose = \"early\"\n\
                [[site]]\nname = \"b\"\nwhile_down = \"refuse\"\n\
                [link]\ninterface = \"lo\"\ngateway = \"192.0.2.9\"\n\
                [admin]\nsocket = \"no/such/directory.sock\"\nmode = \"0660\"\n\
                [custody]\nfolder = \"held\"\nmemory = \"16MiB\"\n";
    let output = with_a_peer(directory.path(), OTHER_KEY, more);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let summary = text(&output.stdout);
    let held = path("held");
    for part in [
        "gateway 192.0.2.9, probed every 5s\n",
        "custody     flows ",
        &format!("tunnels hold at most 16MiB in memory, 1GiB on disk in {held} (will be created, "),
        "no/such/directory.sock, for pepd's user and group (0660)\n",
        "held        data, while the link is down, for up to 6h; a client's FIN is acknowledged at once",
        "link down   new flows are reset at once\n",
    ] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    let warnings = text(&output.stderr);
    assert!(
        warnings.contains("admin.socket: ") && warnings.contains("choose another path"),
        "{warnings}"
    );
    assert!(
        !directory.path().join("held").exists(),
        "a check makes nothing"
    );

    fs::write(directory.path().join("held"), "").expect("writable");
    let output = with_a_peer(directory.path(), OTHER_KEY, more);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let errors = text(&output.stderr);
    assert!(
        errors.contains(": custody.directory: cannot keep custody in ")
            && errors.contains("remove it, or configure"),
        "{errors}"
    );
}

#[test]
fn an_invalid_or_excessive_time_is_reported_with_its_option() {
    for (time, shown) in [("400d", "--for 400d: "), ("0s", "--for 0")] {
        let output = pepd(&["link", "down", "--for", time, "--socket", "/nonexistent"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let message = text(&output.stderr);
        assert!(
            message.contains(shown) && message.contains("at most 365d"),
            "{message}"
        );
        assert!(!message.contains("for_s"), "{message}");
    }
    // This one is sent, but no process listens.
    let output = pepd(&["link", "down", "--for", "365d", "--socket", "/nonexistent"]);
    assert!(!text(&output.stderr).contains("--for"), "{output:?}");
}

#[test]
fn settings_of_pepsal_become_a_configuration_that_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules");
    let rule = "-A PREROUTING -i eth0 -p tcp -j TPROXY --on-port 5000 --on-ip 0.0.0.0 --tproxy-mark 0x1/0xffffffff\n";
    fs::write(&rules, rule).unwrap();
    let link = ["--link", "sat0", "--rate", "10Mbit/s", "--rtt", "600ms"];
    let pepsal = [
        "--command",
        "pepsal -d -C hybla -c 512",
        "--rules",
        rules.to_str().unwrap(),
    ];
    let made = pepd(&[&["migrate"], &link[..], &pepsal[..]].concat());
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let (_, checked) = check(&text(&made.stdout));
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    assert!(
        text(&checked.stdout).contains("512 flows"),
        "{}",
        text(&checked.stdout)
    );

    let unknown = pepd(&["migrate", "--command", "pepsal -d"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(
        text(&unknown.stderr).contains("--lan"),
        "{}",
        text(&unknown.stderr)
    );
}

#[test]
fn a_named_pipe_is_no_configuration_and_is_not_waited_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pepd.toml");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let output = pepd(&["check", "--config", path.to_str().expect("text")]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("named pipe"), "{error}");
}

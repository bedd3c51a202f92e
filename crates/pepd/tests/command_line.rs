//! What an operator sees of `pepd check`.

use std::{
    fs,
    process::{Command, Output},
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
fn what_the_kernel_lacks_is_an_error_like_any_other() {
    let site = "[intercept]\nlan = [\"lo\"]\n[[site]]\nname = \"a\"\ncongestion = [\"nonesuch\"]\n";
    let (path, output) = check(site);
    assert_eq!(output.status.code(), Some(3));
    let errors = text(&output.stderr);
    let expected =
        format!("{path}:5: site[1].congestion: this kernel has no \"nonesuch\"; it has ");
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
        "bandwidth-delay product 750kB",
        "dport 80, 8000-8100",
        "reno (of nonesuch, reno)",
        "buffers 1.5MB",
        "paced at 10Mbit/s",
        "  1. office",
        "  2. default",
    ] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    let warnings = text(&output.stderr);
    assert!(
        warnings.contains(":2: intercept.lan: there is no interface `nonesuch0`"),
        "{warnings}"
    );
}

#[test]
fn a_missing_file_and_a_wrong_command_line_have_their_own_codes() {
    let missing = pepd(&["check", "--config", "/nonexistent/pepd.toml"]);
    assert_eq!(missing.status.code(), Some(3));
    assert!(text(&missing.stderr).contains("/nonexistent/pepd.toml: cannot be read"));
    assert_eq!(pepd(&["chekc"]).status.code(), Some(2));
    assert_eq!(pepd(&["--help"]).status.code(), Some(0));
}

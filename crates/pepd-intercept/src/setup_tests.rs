use super::*;

fn config(syn: &str) -> Config {
    let text = format!("[intercept]\nlan = [\"lan0\"]\nsyn = \"{syn}\"\n");
    pep_core::config::parse(&text).expect("a valid configuration")
}

#[test]
fn every_missing_capability_is_named_as_operators_write_it() {
    let err = SetupError::Capability {
        missing: CAPABILITIES.to_vec(),
        program: "/usr/bin/pepd".to_owned(),
    };
    let message = err.to_string();
    let names = "pepd lacks CAP_NET_ADMIN, CAP_NET_RAW, CAP_NET_BIND_SERVICE: ";
    assert!(message.starts_with(names), "{message}");
    assert!(message.ends_with("=ep /usr/bin/pepd"), "{message}");
}

#[test]
fn a_machine_that_does_not_forward_cannot_defer() {
    let off = |path: &str| (path == "net/ipv4/ip_forward").then(|| "0".to_owned());
    let warnings = check_sysctls_with(&config("spoof"), [true; 2], off).expect("only a warning");
    let [warning] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    let reported = warning.to_string();
    assert!(
        reported.starts_with("forwarding: off for IPv4"),
        "{reported}"
    );
    assert!(
        reported.ends_with("sysctl -w net.ipv4.ip_forward=1"),
        "{reported}"
    );
    let err = check_sysctls_with(&config("defer"), [true; 2], off).expect_err("cannot work");
    assert!(
        err.to_string().ends_with("sysctl -w net.ipv4.ip_forward=1"),
        "{err}"
    );
    let warned = check_sysctls_with(&config("defer"), [false, true], off);
    assert_eq!(warned.expect("hosts have IPv6 alone").len(), 1);
}

#[test]
fn a_reverse_path_check_that_sees_marks_is_warned_of() {
    let on = |path: &str| {
        let is_on = ["all/src_valid_mark", "lan0/rp_filter"];
        let is_on = is_on.iter().any(|key| path.ends_with(key));
        is_on.then(|| "1".to_owned())
    };
    let warned = |syn| check_sysctls_with(&config(syn), [true; 2], on).expect("only a warning");
    let [warning] = warned("defer").try_into().expect("one warning");
    assert!(warning.seen.contains("strict on lan0"), "{warning}");
    assert_eq!(warned("spoof"), [], "the rule for look-ups in reverse");
}

#[test]
fn forwarding_of_ipv6_matters_where_hosts_have_it() {
    let off = |path: &str| (path == "net/ipv6/conf/all/forwarding").then(|| "0".to_owned());
    let warned = |ipv6| check_sysctls_with(&config("spoof"), [true, ipv6], off).expect("no error");
    assert_eq!(warned(false), []);
    assert_eq!(warned(true).len(), 1);
    // No interface has this name.
    assert!(!serves(&config("spoof"), leg::Family::V6));
}

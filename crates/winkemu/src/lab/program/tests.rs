use std::sync::atomic::AtomicU64;

use super::*;
use crate::{
    lab::{LinkEdge, Topology, topology::Family},
    link::LinkOptions,
};

const TIMEOUT: Duration = Duration::from_secs(20);

fn bulk(transfer: Transfer) -> Bulk {
    Bulk {
        transfer,
        duration: Duration::from_millis(600),
        warmup: Duration::from_millis(100),
        congestion: Some("reno".to_owned()),
        family: Family::Ipv6,
        port: 9000,
        interval: Duration::from_millis(100),
        quic: None,
        pacing: None,
        sample: Duration::from_millis(200),
        early: Duration::from_millis(300),
    }
}

fn pair() -> Topology {
    Topology::chain(&["client", "server"]).unwrap()
}

#[test]
fn bulk_measures_at_the_receiver_in_both_directions() {
    let lab = pair();
    for transfer in [Transfer::Upload, Transfer::Download] {
        let result = bulk(transfer)
            .run(lab.node("client"), lab.node("server"))
            .unwrap();
        assert_eq!(result.congestion, "reno");
        assert_eq!(result.series.len(), 6);
        assert!(result.first_byte_s.unwrap() < 0.5, "{result:?}");
        assert!(result.goodput_bps > 1e6, "{result:?}");
        let bytes: f64 = result
            .series
            .iter()
            .map(|point| point.bps * 0.1 / 8.0)
            .sum();
        assert!(
            (bytes - result.bytes as f64).abs() < 1.0,
            "{bytes} {result:?}"
        );
    }
}

#[test]
fn bulk_watches_its_sending_socket() {
    let lab = pair();
    for transfer in [Transfer::Upload, Transfer::Download] {
        let result = bulk(transfer)
            .run(lab.node("client"), lab.node("server"))
            .unwrap();
        // Samples every 200 ms, at the end of the early part, and at the end; fewer on a busy
        // machine.
        let tcp = &result.tcp;
        assert!(tcp.len() >= 2, "{tcp:?}");
        assert!(tcp.iter().any(|sample| sample.t_s >= 0.3), "{tcp:?}");
        let last = tcp.last().unwrap();
        assert!(last.t_s >= 0.6, "{tcp:?}");
        // On a machine that stalls, the sender restarts with a small window.
        assert!(
            tcp.iter().any(|sample| sample.tcp.snd_cwnd >= 10),
            "{tcp:?}"
        );
        let carried = f64::from(last.tcp.delivered) * f64::from(last.tcp.snd_mss);
        // The sender has ACKs for what the receiver read; segments may be shorter.
        assert!(carried >= result.bytes as f64 * 0.9, "{carried} {result:?}");
        assert!(last.tcp.srtt_us > 0, "{tcp:?}");
        assert!(
            result.retransmitted_early_bytes <= result.retransmitted_bytes
                && result.retransmitted_bytes == Some(last.tcp.bytes_retrans),
            "{result:?}"
        );
    }
}

#[test]
fn bulk_is_paced_in_both_directions() {
    let lab = pair();
    for transfer in [Transfer::Upload, Transfer::Download] {
        let bulk = Bulk {
            pacing: Some("4Mbit/s".parse().unwrap()),
            ..bulk(transfer)
        };
        let result = bulk.run(lab.node("client"), lab.node("server")).unwrap();
        // After a wait, pacing lets a few packets pass at once.
        assert!(
            (0.1e6..4.4e6).contains(&result.goodput_bps),
            "{transfer:?}: {result:?}"
        );
    }
}

#[test]
fn bulk_goes_by_quic_in_both_directions_with_each_control() {
    let lab = pair();
    for (transfer, control) in [
        (Transfer::Upload, QuicControl::Bbr),
        (Transfer::Download, QuicControl::Cubic),
        (Transfer::Upload, QuicControl::Reno),
    ] {
        let bulk = Bulk {
            quic: Some(control),
            ..bulk(transfer)
        };
        let result = bulk.run(lab.node("client"), lab.node("server")).unwrap();
        assert!(result.congestion.ends_with("of quinn"), "{result:?}");
        assert!(result.goodput_bps > 1e6, "{result:?}");
        assert_eq!(result.series.len(), 6);
    }
}

#[test]
fn every_congestion_control_of_the_kernel_can_be_a_nodes_default() {
    let available = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = std::fs::read_to_string(available).unwrap();
    let names = available.split_whitespace();
    // Those of a running pepd go with it, at any moment.
    for name in names.filter(|name| !name.contains("_bpf")) {
        let lab = pair();
        lab.node("client").set_congestion(name).unwrap();
        lab.node("server").set_congestion(name).unwrap();
        for (transfer, family) in [
            (Transfer::Upload, Family::Ipv4),
            (Transfer::Download, Family::Ipv6),
        ] {
            let bulk = Bulk {
                congestion: None,
                family,
                ..bulk(transfer)
            };
            let result = bulk.run(lab.node("client"), lab.node("server")).unwrap();
            assert_eq!(result.congestion, name);
        }
    }
}

#[test]
fn bulk_says_which_congestion_control_is_missing() {
    let lab = pair();
    let bulk = Bulk {
        congestion: Some("no-such".to_owned()),
        ..bulk(Transfer::Upload)
    };
    let err = bulk
        .run(lab.node("client"), lab.node("server"))
        .unwrap_err()
        .to_string();
    assert!(err.contains("`no-such`"), "{err}");
}

#[test]
fn curl_and_nginx_move_files_both_ways() {
    let lab = pair();
    let directory = tempfile::tempdir().unwrap();
    let (client, server) = (lab.node("client"), lab.node("server"));
    let web = directory.path().join("web");
    std::fs::create_dir(&web).unwrap();
    let nginx = Nginx::start(server, &web, 1).unwrap();
    for (transfer, family) in [
        (Transfer::Upload, Family::Ipv4),
        (Transfer::Download, Family::Ipv6),
    ] {
        let curl = Curl {
            transfer,
            bytes: 3_000_000,
            family,
            timeout: TIMEOUT,
            partial: false,
        };
        let live = AtomicU64::new(0);
        let slot = (&nginx, 0);
        let result = curl.run(client, server, slot, directory.path(), &live);
        let result = result.unwrap();
        assert!(
            result.seconds > 0.0 && result.first_byte_s <= result.seconds,
            "{result:?}"
        );
        assert!(result.is_whole());
        assert_eq!(result.arrivals.last().unwrap().bytes, 3_000_000);
        let expected = 3_000_000.0 * 8.0 / result.seconds;
        assert!((result.goodput_bps - expected).abs() < 1.0, "{result:?}");
    }
}

#[test]
fn a_time_limit_leaves_the_part_that_had_arrived_or_fails() {
    // 500 kB/s: a third of the file within the limit.
    let link = "rate=4Mbit/s,delay=5ms".parse::<LinkOptions>().unwrap();
    let link = LinkEdge::new("link", link.resolve_without_files().unwrap());
    let lab = Topology::builder().link("client", "server", link);
    let lab = lab.build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (client, server) = (lab.node("client"), lab.node("server"));
    let web = directory.path().join("web");
    std::fs::create_dir(&web).unwrap();
    let nginx = Nginx::start(server, &web, 2).unwrap();
    for (slot, transfer) in [Transfer::Upload, Transfer::Download]
        .into_iter()
        .enumerate()
    {
        let curl = |partial| Curl {
            transfer,
            bytes: 3_000_000,
            family: Family::Ipv4,
            timeout: Duration::from_secs(2),
            partial,
        };
        let run = |curl: &Curl| {
            let live = AtomicU64::new(0);
            let result = curl.run(client, server, (&nginx, slot), directory.path(), &live);
            result.map(|result| (result, live.into_inner()))
        };
        let (result, live) = run(&curl(true)).unwrap();
        assert!(!result.is_whole(), "{result:?}");
        assert!((100_000..2_000_000).contains(&live), "{live}");
        assert!(result.arrived_bytes >= live, "{result:?}");
        // curl's own clock and limit are a little off.
        assert!(result.seconds >= 1.9, "{result:?}");
        let failure = run(&curl(false)).unwrap_err();
        assert!(matches!(failure, ProgramError::Timeout { .. }), "{failure}");
    }
}

#[test]
fn nginx_that_cannot_start_says_why() {
    let lab = pair();
    let directory = tempfile::tempdir().unwrap();
    let server = lab.node("server");
    // Bound but not listening, so that no server answers in nginx's place.
    let bind = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        let any = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 80));
        socket.bind(&any.into()).map(|()| socket)
    };
    let _held = server.netns().enter(bind).unwrap().unwrap();
    let err = Nginx::start(server, directory.path(), 1)
        .unwrap_err()
        .to_string();
    assert!(
        err.contains("nginx") && err.contains("Address already in use"),
        "{err}"
    );
}

#[test]
fn iperf3_tells_what_its_receiver_got() {
    let lab = pair();
    for transfer in [Transfer::Upload, Transfer::Download] {
        let iperf3 = Iperf3 {
            transfer,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
            flows: 2,
            congestion: Some("reno".to_owned()),
            family: Family::Ipv4,
            timeout: TIMEOUT,
        };
        let result = iperf3.run(lab.node("client"), lab.node("server")).unwrap();
        assert!(
            result.goodput_bps > 1e6 && result.bytes > 100_000,
            "{}",
            result.goodput_bps
        );
    }
}

#[test]
fn commands_succeed_fail_and_time_out() {
    let lab = pair();
    let shell = |text: &str, timeout| Shell {
        command: ["sh", "-c", text].map(str::to_owned).to_vec(),
        timeout,
    };
    let node = lab.node("client");
    let variables = [("WHO".to_owned(), "you".to_owned())];
    let finished = shell("echo hello $WHO", TIMEOUT)
        .run(node, &variables)
        .unwrap();
    assert_eq!(finished.stdout, "hello you\n");
    let err = shell("echo broken >&2; exit 3", TIMEOUT)
        .run(node, &[])
        .unwrap_err();
    assert!(
        err.to_string().contains("broken") && err.to_string().contains('3'),
        "{err}"
    );
    let err = shell("sleep 60", Duration::from_millis(50))
        .run(node, &[])
        .unwrap_err();
    assert!(matches!(err, ProgramError::Timeout { .. }), "{err}");
    let absent = Shell {
        command: vec!["no-such-program".to_owned()],
        timeout: TIMEOUT,
    };
    let err = absent.run(node, &[]).unwrap_err();
    assert!(matches!(err, ProgramError::NotInstalled { .. }), "{err}");
}

#[test]
fn lines_are_waited_for_and_the_end_is_noticed() {
    let (reader, mut writer) = io::pipe().unwrap();
    let lines = Lines::collect(reader);
    io::Write::write_all(&mut writer, b"one\ntwo\n").unwrap();
    assert_eq!(
        lines.wait_for(0, TIMEOUT, |line| line == "two").unwrap(),
        "two"
    );
    assert_eq!(
        lines.wait_for(1, Duration::from_millis(10), |line| line == "one"),
        None
    );
    drop(writer);
    lines.wait_end(TIMEOUT);
    assert_eq!(
        (lines.count(), lines.all()),
        (2, vec!["one".to_owned(), "two".to_owned()])
    );
}

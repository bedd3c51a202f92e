//! Packets and bytes per second.

use std::{process::Stdio, time::Instant};

use winkemu::{
    netns::Process,
    shell::{LinkReport, Priority},
};

use super::{
    Effort, Outcome,
    probe::{HEADERS, Place},
};

/// Small packets through a link without limits, as fast as one sender produces them.
pub(crate) fn packets(effort: Effort) -> Vec<Outcome> {
    let place = Place::bare();
    let seconds = flood(&place, effort);
    let floor = place.stop() as f64 / seconds;
    let place = Place::new("", Priority::Ordinary);
    let seconds = flood(&place, effort);
    let LinkReport {
        ab, cpu_seconds, ..
    } = place.stop();
    let rate = ab.packets.delivered as f64 / seconds;
    vec![Outcome {
        name: "100 B packets".to_owned(),
        measured: format!(
            "{rate:.0} packets/s of {:.0} offered, {:.2} us of CPU each",
            (ab.packets.delivered + ab.tun_drops) as f64 / seconds,
            cpu_seconds * 1e6 / ab.packets.delivered as f64
        ),
        target: ">= 200,000 packets/s",
        met: rate >= 200_000.0,
        floor: format!("{floor:.0} packets/s"),
        mahimahi: "",
        rattan: "",
    }]
}

/// Sends without pause; returns the seconds that it took.
fn flood<Between>(place: &Place<Between>, effort: Effort) -> f64 {
    let (sender, _receiver) = place.sockets();
    let begin = Instant::now();
    while begin.elapsed() < effort.seconds() {
        for _ in 0..100 {
            // ENOBUFS means that the interface is full, as intended here.
            let _ = sender.send(&[0; 100 - HEADERS]);
        }
    }
    begin.elapsed().as_secs_f64()
}

/// One TCP flow by iperf3, measured at the receiver.
pub(crate) fn tcp(effort: Effort) -> Vec<Outcome> {
    let place = Place::bare();
    let floor = iperf3(&place, effort);
    place.stop();
    let place = Place::new("", Priority::Ordinary);
    let goodput = iperf3(&place, effort);
    place.stop();
    let words = |goodput: &Result<f64, String>| match goodput {
        Ok(bits) => format!("{:.2} Gbit/s", bits / 1e9),
        Err(problem) => problem.clone(),
    };
    vec![Outcome {
        name: "one TCP flow (iperf3)".to_owned(),
        measured: words(&goodput),
        target: ">= 1 Gbit/s",
        floor: words(&floor),
        met: goodput.is_ok_and(|bits| bits >= 1e9),
        mahimahi: "1.3 Gbit/s",
        rattan: "1.0 Gbit/s",
    }]
}

fn iperf3<Between>(place: &Place<Between>, effort: Effort) -> Result<f64, String> {
    let mut server = place.b.command("iperf3");
    server.args(["-s", "-1"]).stdout(Stdio::null());
    let server = Process::spawn(&mut server).map_err(|error| format!("no iperf3: {error}"))?;
    let seconds = effort.seconds().as_secs().to_string();
    // The client fails at once until the server listens.
    let begin = Instant::now();
    loop {
        let mut client = place.a.command("iperf3");
        let client = client
            .args(["-c", "10.0.0.2", "-J", "-t", &seconds])
            .output();
        let output = client.map_err(|error| format!("no iperf3: {error}"))?;
        if output.status.success() {
            drop(server);
            let report: serde_json::Value =
                serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
            let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
            return bits.ok_or_else(|| "no report from iperf3".to_owned());
        }
        if begin.elapsed().as_secs() > 20 {
            return Err(String::from_utf8_lossy(&output.stdout).into_owned());
        }
    }
}

//! Packets and bytes per second.

use std::{process::Stdio, time::Instant};

use pepd_tests::speed::Summary;
use winkemu::{
    netns::Process,
    shell::{LinkReport, Priority},
};

use super::{
    Effort, Outcome, TRANSFER_TIME,
    probe::{HEADERS, Place},
};

/// Small packets through a link without limits, as fast as one sender produces them.
pub(crate) fn packets(effort: Effort) -> Vec<Outcome> {
    let (mut floors, mut rates, mut offered, mut cpu) = (vec![], vec![], vec![], vec![]);
    for _ in 0..effort.rounds() {
        let place = Place::bare();
        let seconds = flood(&place);
        floors.push(place.stop() as f64 / seconds);
        let place = Place::new("", Priority::Ordinary);
        let seconds = flood(&place);
        let LinkReport {
            ab, cpu_seconds, ..
        } = place.stop();
        let delivered = ab.packets.delivered as f64;
        rates.push(delivered / seconds);
        offered.push((delivered + ab.tun_drops as f64) / seconds);
        cpu.push(cpu_seconds * 1e6 / delivered);
    }
    let [rate, offered, cpu] = [&rates, &offered, &cpu].map(|v| Summary::from_values(v));
    vec![Outcome {
        name: "100 B packets".to_owned(),
        measured: format!("{rate} packets/s of {offered} offered, {cpu} us of CPU each"),
        target: ">= 200,000 packets/s",
        met: rate.median >= 200_000.0,
        floor: floor("packets/s", &rates, &floors),
        mahimahi: "",
        rattan: "",
    }]
}

/// Formats the figures without a link, and the ratio of those with one to them.
fn floor(unit: &str, with: &[f64], without: &[f64]) -> String {
    let ratio = Summary::of_pairs(with, without, |with, without| with / without);
    format!("{} {unit}; ratio {ratio}", Summary::from_values(without))
}

/// Sends without pause; returns the seconds that it took.
fn flood<Between>(place: &Place<Between>) -> f64 {
    let (sender, _receiver) = place.sockets();
    let begin = Instant::now();
    while begin.elapsed() < TRANSFER_TIME {
        for _ in 0..100 {
            // ENOBUFS means that the interface is full, as intended here.
            let _ = sender.send(&[0; 100 - HEADERS]);
        }
    }
    begin.elapsed().as_secs_f64()
}

/// One TCP flow by iperf3, measured at the receiver.
pub(crate) fn tcp(effort: Effort) -> Vec<Outcome> {
    let round = || -> Result<[f64; 2], String> {
        let place = Place::bare();
        let without = iperf3(&place);
        place.stop();
        let place = Place::new("", Priority::Ordinary);
        let with = iperf3(&place);
        place.stop();
        Ok([with? / 1e9, without? / 1e9])
    };
    let rounds: Result<Vec<_>, _> = (0..effort.rounds()).map(|_| round()).collect();
    let (measured, met, floor) = match rounds {
        Ok(rounds) => {
            let [with, without] =
                [0, 1].map(|of| rounds.iter().map(|round| round[of]).collect::<Vec<_>>());
            let goodput = Summary::from_values(&with);
            let met = goodput.median >= 1.0;
            (
                format!("{goodput} Gbit/s"),
                met,
                floor("Gbit/s", &with, &without),
            )
        }
        Err(problem) => (problem, false, String::new()),
    };
    vec![Outcome {
        name: "one TCP flow (iperf3)".to_owned(),
        measured,
        target: ">= 1 Gbit/s",
        floor,
        met,
        mahimahi: "1.3 Gbit/s",
        rattan: "1.0 Gbit/s",
    }]
}

fn iperf3<Between>(place: &Place<Between>) -> Result<f64, String> {
    let mut server = place.b.command("iperf3");
    server.args(["-s", "-1"]).stdout(Stdio::null());
    let server = Process::spawn(&mut server).map_err(|error| format!("no iperf3: {error}"))?;
    let seconds = TRANSFER_TIME.as_secs().to_string();
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

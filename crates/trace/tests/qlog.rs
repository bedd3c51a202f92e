//! Round trips through the reader of another implementation.

use std::time::Duration;

use qlog::{
    QlogSeq,
    events::{Event as Read, EventData, quic::QuicFrame},
};
use trace::{
    Event, Frame, Metrics, Packet, Trace,
    qlog::{Header, Writer},
};

const SECOND: Duration = Duration::from_secs(1);

fn packet(number: u64, frames: Vec<Frame>) -> Packet {
    Packet {
        number,
        bytes: 1200,
        marked: true,
        frames,
    }
}

fn every_frame() -> Vec<Frame> {
    let stream = 4;
    vec![
        Frame::Padding { bytes: 7 },
        Frame::Probe,
        Frame::Report {
            packets: vec![(9, 12), (1, 7)],
            delay: Duration::from_micros(1500),
            marked: 3,
            below: 5,
            segments: vec![(8, 8)],
        },
        Frame::MtuProbe { id: 1 },
        Frame::MtuAck { id: 1 },
        Frame::PathChallenge { token: 2 },
        Frame::PathResponse { token: 2 },
        Frame::Close {
            code: 2,
            reason: "over".to_owned(),
        },
        Frame::Segment { number: 77 },
        Frame::Source { channel: 1 },
        Frame::Repair {
            channel: 0,
            bytes: 99,
        },
        Frame::Open { stream },
        Frame::Data {
            stream,
            offset: 1 << 40,
            bytes: 1000,
            fin: true,
        },
        Frame::Reset {
            stream,
            code: 1,
            size: 9,
        },
        Frame::Credit { stream, until: 10 },
        Frame::SessionCredit { until: 11 },
        Frame::Reclass { stream },
        Frame::Hold { stream, until: 12 },
        Frame::Datagram {
            channel: 3,
            bytes: 84,
        },
        Frame::Further { frames: 9 },
        Frame::Later {
            kind: 0x20,
            bytes: 7,
        },
        Frame::Unreadable,
    ]
}

fn records(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8(text.to_vec()).expect("JSON is UTF-8");
    let mut records = text.split('\u{1e}');
    assert_eq!(records.next(), Some(""), "a separator precedes each record");
    records
        .map(|record| {
            record
                .strip_suffix('\n')
                .expect("and ends with a line")
                .to_owned()
        })
        .collect()
}

#[test]
fn the_header_is_read_by_others() {
    let mut out = Vec::new();
    let header = Header {
        title: "flow 12-a3f1",
        vantage_point: "pepd",
        is_client: true,
        reference: SECOND,
    };
    Writer::header(&header, &mut out);
    let read: QlogSeq = serde_json::from_str(&records(&out)[0]).expect("a header");
    assert_eq!(
        (&*read.qlog_version, &*read.qlog_format),
        ("0.3", "JSON-SEQ")
    );
    let fields = read.trace.common_fields.expect("they are there");
    assert_eq!(fields.reference_time, Some(1000.0));
}

#[test]
fn frames_are_read_by_others() {
    let mut out = Vec::new();
    let writer = Writer::new(SECOND);
    let at = SECOND + Duration::from_micros(2500);
    writer.event(at, &Event::Sent(packet(3, every_frame())), &mut out);
    let read: Read = serde_json::from_str(&records(&out)[0]).expect("an event");
    assert_eq!(read.time, 2.5);
    let EventData::PacketSent(sent) = read.data else {
        panic!("another event: {read:?}");
    };
    assert_eq!(sent.header.packet_number, Some(3));
    let frames = sent.frames.expect("there are some");
    assert_eq!(frames.len(), every_frame().len());
    let stream = frames.iter().find_map(|frame| match frame {
        QuicFrame::Stream {
            stream_id,
            offset,
            length,
            fin,
            ..
        } => Some((*stream_id, *offset, *length, *fin)),
        _ => None,
    });
    assert_eq!(stream, Some((4, 1 << 40, 1000, Some(true))));
    let own = |frame: &&QuicFrame| matches!(frame, QuicFrame::Unknown { .. });
    assert_eq!(frames.iter().filter(own).count(), 10);
}

#[test]
fn metrics_and_losses_are_read_by_others() {
    let mut trace = Trace::default();
    trace.begin(10);
    trace.push(|| {
        Event::Metrics(Metrics {
            latest_rtt: SECOND,
            smoothed_rtt: SECOND,
            min_rtt: SECOND / 2,
            rtt_variance: None,
            pacing_rate: Some(10_000_000),
            link_rate: None,
            congestion_window: None,
            bytes_in_flight: Some(7),
        })
    });
    trace.push(|| Event::Lost {
        first: 10,
        packets: 3,
        cause: "link",
    });
    trace.push(|| Event::Stream {
        stream: 4,
        state: "closed",
    });
    let mut out = Vec::new();
    Writer::new(Duration::ZERO).taken(&trace.take(), &mut out);
    let read: Vec<Read> = records(&out)
        .iter()
        .map(|record| serde_json::from_str(record).expect("an event"))
        .collect();
    let EventData::MetricsUpdated(metrics) = &read[0].data else {
        panic!("another event: {:?}", read[0]);
    };
    let pacing = (metrics.pacing_rate, metrics.bytes_in_flight);
    assert_eq!(pacing, (Some(10_000_000), Some(7)));
    let lost = read.iter().filter_map(|read| match &read.data {
        EventData::PacketLost(lost) => lost.header.as_ref()?.packet_number,
        _ => None,
    });
    assert_eq!(lost.collect::<Vec<_>>(), [10, 11, 12]);
    assert!(matches!(read[4].data, EventData::StreamStateUpdated(_)));
}

#[test]
fn a_peers_claim_of_losses_without_end_is_a_few_records() {
    let mut out = Vec::new();
    let lost = Event::Lost {
        first: u64::MAX - 1,
        packets: u64::MAX,
        cause: "outage",
    };
    Writer::new(Duration::ZERO).event(SECOND, &lost, &mut out);
    let records = records(&out);
    assert_eq!(records.len(), 256);
    assert!(records[255].contains("pepd_further"), "{}", records[255]);
}

use super::*;

/// Returns a datagram with checksums, after `change` has modified it.
fn datagram(version: u8, id: u16, payload: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let length = UDP + payload.len();
    let mut packet = match version {
        4 => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
            header[2..4].copy_from_slice(&(20 + length as u16).to_be_bytes());
            header[4..6].copy_from_slice(&id.to_be_bytes());
            header.extend([10, 1, 0, 2, 10, 2, 0, 2]);
            header
        }
        _ => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
            header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            header.extend([0xfd; 16]);
            header.extend([0xfc; 16]);
            header
        }
    };
    let ip = packet.len();
    packet.extend([0x13, 0xc4, 0x1b, 0x58, 0, length as u8, 0, 0]);
    packet.extend(payload);
    change(&mut packet);
    if version == 4 {
        let sum = checksum::fold(checksum::sum(&packet[..20]));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let sum = Ip::parse(&packet).map(|ip| checksum::of_transport(&ip, ip.payload()));
    packet[ip + 6..ip + 8].copy_from_slice(&sum.unwrap_or_default().to_be_bytes());
    packet
}

fn plain(version: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    datagram(version, id, payload, |_| {})
}

/// Splits a written run like the kernel's `__udp_gso_segment` and `inet_gso_segment`.
fn parted(run: &Run) -> Vec<Vec<u8>> {
    let (read, write) = std::os::unix::net::UnixDatagram::pair().unwrap();
    run.write(&write).unwrap();
    let mut buffer = vec![0; 70_000];
    let length = read.recv(&mut buffer).unwrap();
    let field = |at: usize| usize::from(u16::from_ne_bytes([buffer[at], buffer[at + 1]]));
    assert_eq!(buffer[..2], [NEEDS_CHECKSUM, GSO_UDP]);
    let (headers, segment, start, offset) = (field(2), field(4), field(6), field(8));
    let whole = &buffer[HEADER..length];
    assert_eq!(offset, 6);
    let (header, payload) = whole.split_at(headers);
    let ip = Ip::parse(whole).expect("a packet");
    assert_eq!((ip.header, ip.bytes.len()), (start, whole.len()));
    assert!(ip.version == 6 || checksum::is_valid(&whole[..start]));
    let payload_length = u16::from_be_bytes([header[start + 4], header[start + 5]]);
    assert_eq!(usize::from(payload_length), whole.len() - start);
    // Of the addresses only, so that the sum of the rest can be added.
    let addresses = checksum::pseudo(&ip, whole.len() - start);
    let given = u16::from_be_bytes([header[start + 6], header[start + 7]]);
    assert_eq!(given, !checksum::fold(addresses));
    let chunks = payload.chunks(segment).enumerate();
    let part = |(number, chunk): (usize, &[u8])| {
        let of = |packet: &mut Vec<u8>| {
            packet[1] = header[1];
            if ip.version == 4 {
                packet[6..10].copy_from_slice(&header[6..10]);
            } else {
                packet[..4].copy_from_slice(&header[..4]);
                packet[7] = header[7];
            }
        };
        let id = u16::from_be_bytes([header[4], header[5]]).wrapping_add(number as u16);
        datagram(ip.version, id, chunk, of)
    };
    chunks.map(part).collect()
}

#[test]
fn datagrams_of_a_flow_go_as_one_and_come_out_as_they_were() {
    for version in [4, 6] {
        let mut run = Run::new(plain(version, 0xfffe, &[7; 100]));
        for number in 1..4_u8 {
            run.push(plain(
                version,
                0xfffe_u16.wrapping_add(number.into()),
                &[number; 100],
            ))
            .unwrap();
        }
        run.push(plain(version, 2, &[9; 3])).unwrap();
        assert_eq!(parted(&run), run.packets(), "IPv{version}");
        // A shorter one is the last.
        run.push(plain(version, 3, &[9; 3])).unwrap_err();
    }
}

#[test]
fn what_the_kernel_would_change_goes_alone() {
    let first = |version| plain(version, 1, &[7; 100]);
    let refuses = |version: u8, what: &str, packet: Vec<u8>| {
        let mut run = Run::new(first(version));
        let refused = run.push(packet.clone()).expect_err(what);
        assert_eq!(refused.packet, packet, "{what}");
        // No packet follows it, unless only the first differs.
        Run::new(packet)
    };
    let change =
        |version, at: usize, to: u8| datagram(version, 2, &[7; 100], move |packet| packet[at] = to);
    refuses(4, "DSCP or ECN", change(4, 1, 1));
    refuses(4, "TTL", change(4, 8, 63));
    refuses(4, "may be fragmented or not", change(4, 6, 0x40));
    refuses(4, "another host", change(4, 15, 9));
    refuses(4, "another port", change(4, 21, 9));
    refuses(4, "longer", plain(4, 2, &[7; 101]));
    refuses(
        4,
        "shorter, as of a path that carries no more",
        plain(4, 2, &[7; 99]),
    );
    refuses(4, "identification", plain(4, 3, &[7; 100]));
    refuses(6, "flow label", change(6, 3, 1));
    refuses(6, "hop limit", change(6, 7, 1));
    refuses(6, "version", plain(4, 2, &[7; 100]));

    let alone = |version: u8, what: &str, packet: Vec<u8>| {
        let mut run = refuses(version, what, packet);
        run.push(plain(version, 2, &[7; 100])).unwrap_err();
    };
    alone(4, "a fragment", change(4, 6, 0x20));
    alone(4, "another protocol", change(4, 9, 6));
    alone(4, "UDP of another length", change(4, 25, 50));
    for version in [4, 6] {
        let at = if version == 4 { 20 } else { 40 };
        let mut wrong = plain(version, 2, &[7; 100]);
        wrong[at + 50] ^= 1;
        alone(version, "a wrong checksum", wrong);
        let mut none = plain(version, 2, &[7; 100]);
        none[at + 6..at + 8].fill(0);
        alone(version, "no checksum", none);
        alone(version, "nothing", plain(version, 2, &[]));
        alone(
            version,
            "cut off",
            plain(version, 2, &[7; 100])[..50].to_vec(),
        );
    }
    let mut jumbogram = plain(6, 2, &[7; 100]);
    jumbogram[4..6].fill(0);
    alone(6, "no length", jumbogram);
    let mut wrong = plain(4, 2, &[7; 100]);
    wrong[10] ^= 1;
    alone(4, "a wrong checksum of the header", wrong);
    alone(4, "no packet", Vec::new());
}

#[test]
fn the_identification_of_what_is_not_fragmented_does_not_count() {
    let atomic = |id, byte| datagram(4, id, &[byte; 50], |packet| packet[6] = 0x40);
    let mut run = Run::new(atomic(0, 1));
    run.push(atomic(0, 2)).unwrap();
    let expected = [atomic(0, 1), atomic(1, 2)];
    assert_eq!(parted(&run), expected);
}

#[test]
fn a_run_has_an_end() {
    let mut run = Run::new(plain(6, 0, &[1; 10]));
    let more = (1..).take_while(|_| run.push(plain(6, 0, &[1; 10])).is_ok());
    assert_eq!(more.count(), RUN_MAX - 1);
    let long = || {
        datagram(6, 0, &[1; 9000], |packet| {
            packet[44..46].copy_from_slice(&9008_u16.to_be_bytes());
        })
    };
    let mut run = Run::new(long());
    let more = (1..).take_while(|_| run.push(long()).is_ok());
    assert_eq!(more.count(), 6, "65,535 bytes with headers");
}

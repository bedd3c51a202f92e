//! Decisions on flows and packets of peers.

use proptest::prelude::*;

use super::*;
use crate::config::{self, Peer};

const HOSTS: [&str; 2] = ["10.5.0.2", "fd05::2"];
const SERVERS: [&str; 2] = ["203.0.113.5:80", "[2001:db8::5]:80"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the reach of the first of two peers with these keys.
fn reach(one: &str, two: &str) -> Reach {
    let text = format!(
        "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\nlisten = \"0.0.0.0:1\"\n\
         [peer.one]\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n{one}\n\
         [peer.two]\npublic_key = \"ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0A=\"\n{two}\n"
    );
    let config = config::parse(&text).unwrap();
    Peer::reach(&config.peers, 0)
}

/// Returns the place of an address on a hub with two networks of its own, and a default route.
fn place(address: IpAddr) -> Place {
    let own = [
        "10.77.9.1",
        "10.77.9.255",
        "198.51.100.1",
        "fd09::1",
        "2001:db8:9::1",
    ];
    let attached = [
        "10.77.9.0/24",
        "198.51.100.0/24",
        "fd09::/64",
        "2001:db8:9::/64",
    ];
    let has = |net: &str| net.parse::<IpNet>().unwrap().contains(&address);
    match address {
        _ if own.map(ip).contains(&address) => Place::Own,
        _ if attached.iter().any(|net| has(net)) => Place::Attached,
        IpAddr::V4(address) if address.octets()[0] == 172 => Place::Nowhere,
        _ => Place::Elsewhere,
    }
}

fn ask(reach: &Reach, client: &str, destination: &str, as_client: bool) -> Result<(), Forbidden> {
    let request = Request {
        client: ip(client),
        destination: destination.parse().unwrap(),
        as_client,
        compressed: false,
    };
    reach.check(&request, place)
}

/// Asks for a destination, by both sources, and checks that they are treated alike.
fn ask_to(reach: &Reach, destination: &str) -> Result<(), Forbidden> {
    let client = HOSTS[usize::from(destination.starts_with('['))];
    let [by_self, as_client] = [false, true].map(|by| ask(reach, client, destination, by));
    assert_eq!(by_self, as_client);
    by_self
}

#[test]
fn without_keys_a_peer_reaches_what_is_neither_here_nor_private_beside() {
    let reach = reach("", "from = [\"10.6.0.0/16\", \"fd06::/16\"]");
    for to in [
        "203.0.113.5:80",
        "10.9.0.1:80",
        "[2001:db8::5]:80",
        "[fd77::1]:80",
    ] {
        assert_eq!(ask_to(&reach, to), Ok(()), "{to}");
    }
    // Public addresses beside this machine are as public as elsewhere.
    assert_eq!(ask_to(&reach, "198.51.100.7:80"), Ok(()));
    assert_eq!(ask_to(&reach, "[2001:db8:9::7]:80"), Ok(()));
    for to in [
        "10.77.9.1:80",
        "10.77.9.255:80",
        "198.51.100.1:22",
        "[2001:db8:9::1]:80",
    ] {
        assert_eq!(ask_to(&reach, to), Err(Forbidden::Own), "{to}");
    }
    for to in ["10.77.9.7:80", "172.16.0.1:80", "[fd09::7]:80"] {
        assert_eq!(ask_to(&reach, to), Err(Forbidden::Attached), "{to}");
    }
    for to in ["10.6.1.1:80", "[fd06::1]:80"] {
        assert_eq!(ask_to(&reach, to), Err(Forbidden::OfOther), "{to}");
    }
}

#[test]
fn no_key_permits_loopback_link_local_and_the_like() {
    let all = "to = [\"default\", \"0.0.0.0/0\", \"::/0\", \"127.0.0.1\", \"::1\", \
               \"169.254.169.254\", \"fe80::1\", \"::ffff:10.0.0.1\"]\nfrom = [\"0.0.0.0/0\", \"::/0\"]";
    for reach in [reach("", ""), reach(all, "")] {
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            let to = format!("{address}:80");
            assert_eq!(ask_to(&reach, &to), Err(Forbidden::Destination), "{to}");
            let from = ask(&reach, address, "203.0.113.5:80", false);
            assert_eq!(from, Err(Forbidden::Client), "{address}");
        }
        for address in [
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
        ] {
            let to = format!("[{address}]:80");
            assert_eq!(ask_to(&reach, &to), Err(Forbidden::Destination), "{to}");
            let from = ask(&reach, address, "[2001:db8::5]:80", true);
            assert_eq!(from, Err(Forbidden::Client), "{address}");
        }
    }
}

#[test]
fn with_to_a_peer_reaches_what_it_names() {
    let keys =
        "to = [\"10.77.9.0/24:80,8000-8100\", \"10.6.0.0/16\", \"[fd09::/64]:443\", \"fd06::1\"]";
    let reach = reach(keys, "from = [\"10.6.0.0/16\", \"fd06::/16\"]");
    for to in [
        "10.77.9.7:80",
        "10.77.9.7:8000",
        "10.77.9.7:8100",
        "10.6.1.1:1",
        "[fd09::7]:443",
        "[fd06::1]:9",
    ] {
        assert_eq!(ask_to(&reach, to), Ok(()), "{to}");
    }
    for to in [
        "10.77.9.7:81",
        "10.77.9.7:7999",
        "203.0.113.5:80",
        "[fd09::7]:80",
        "[fd06::2]:9",
        "[2001:db8::5]:80",
    ] {
        assert_eq!(ask_to(&reach, to), Err(Forbidden::Outside), "{to}");
    }
    assert_eq!(
        ask_to(&reach, "10.77.9.1:80"),
        Err(Forbidden::Own),
        "as part of a network"
    );
}

#[test]
fn this_machine_has_to_be_named_alone() {
    let reach_by = |to: &str| reach(&format!("to = [{to}]"), "");
    let machine = [
        "10.77.9.1:80",
        "10.77.9.1:81",
        "10.77.9.255:80",
        "[fd09::1]:80",
    ];
    let answers = |to: &str| machine.map(|machine| ask_to(&reach_by(to), machine));
    let own = Err(Forbidden::Own);
    assert_eq!(answers("\"0.0.0.0/0\", \"::/0\""), [own; 4]);
    assert_eq!(answers("\"10.77.9.0/31\", \"fd09::/127\""), [own; 4]);
    assert_eq!(
        answers("\"10.77.9.1:80\", \"fd09::1\""),
        [Ok(()), own, own, Ok(())]
    );
}

#[test]
fn default_in_to_adds_to_what_is_named() {
    let reach = reach(
        "to = [\"default\", \"10.77.9.7:443\"]",
        "from = [\"10.6.0.0/16\"]",
    );
    assert_eq!(ask_to(&reach, "203.0.113.5:80"), Ok(()));
    assert_eq!(ask_to(&reach, "10.77.9.7:443"), Ok(()));
    assert_eq!(ask_to(&reach, "10.77.9.7:80"), Err(Forbidden::Attached));
    assert_eq!(ask_to(&reach, "10.6.0.1:80"), Err(Forbidden::OfOther));
    assert_eq!(ask_to(&reach, "10.77.9.1:443"), Err(Forbidden::Own));
}

#[test]
fn an_empty_list_permits_nothing() {
    assert_eq!(
        ask_to(&reach("to = []", ""), "203.0.113.5:80"),
        Err(Forbidden::Outside)
    );
    let speaks = ask(&reach("from = []", ""), HOSTS[0], "203.0.113.5:80", false);
    assert_eq!(speaks, Err(Forbidden::ClientOutside));
}

#[test]
fn a_peer_speaks_for_its_own_hosts_only() {
    let two = "from = [\"10.6.0.0/16\", \"192.168.1.0/24\", \"fd06::/16\"]";
    for as_client in [false, true] {
        let ask = |reach: &Reach, client: &str| {
            let server = SERVERS[usize::from(client.contains(':'))];
            ask(reach, client, server, as_client)
        };
        let any = reach("", two);
        for client in [HOSTS[0], HOSTS[1], "192.168.2.1", "203.0.113.9"] {
            assert_eq!(ask(&any, client), Ok(()), "{client}");
        }
        for client in ["10.6.1.1", "192.168.1.9", "fd06::7"] {
            assert_eq!(ask(&any, client), Err(Forbidden::ClientOfOther), "{client}");
        }
        for client in ["10.77.9.1", "198.51.100.1", "10.77.9.255", "fd09::1"] {
            assert_eq!(ask(&any, client), Err(Forbidden::ClientOwn), "{client}");
        }
        let some = reach("from = [\"10.5.0.0/16\", \"fd05::/16\"]", two);
        assert_eq!(ask(&some, HOSTS[0]), Ok(()));
        assert_eq!(ask(&some, HOSTS[1]), Ok(()));
        for client in ["10.4.0.1", "10.6.1.1", "fd04::1"] {
            assert_eq!(
                ask(&some, client),
                Err(Forbidden::ClientOutside),
                "{client}"
            );
        }
        // The longest prefix decides, and peers with the same networks share their hosts.
        let wide = reach("from = [\"10.0.0.0/8\", \"192.168.1.0/24\"]", two);
        assert_eq!(ask(&wide, "10.7.1.1"), Ok(()));
        assert_eq!(ask(&wide, "10.6.1.1"), Err(Forbidden::ClientOfOther));
        assert_eq!(ask(&wide, "192.168.1.9"), Ok(()));
        assert_eq!(ask(&wide, "10.77.9.1"), Err(Forbidden::ClientOwn));
    }
}

#[test]
fn a_host_beside_this_machine_is_spoken_for_only_with_from() {
    let (host, server) = ("10.77.9.8", SERVERS[0]);
    let any = reach("", "");
    assert_eq!(
        ask(&any, host, server, true),
        Err(Forbidden::ClientAttached)
    );
    assert_eq!(ask(&any, host, server, false), Ok(()), "a name in the log");
    let bridged = reach("from = [\"10.77.9.8\"]", "");
    assert_eq!(ask(&bridged, host, server, true), Ok(()));
}

#[test]
fn without_an_answer_of_the_kernel_nothing_is_reached() {
    let reach = reach("to = [\"0.0.0.0/0\"]", "");
    for unknown in [HOSTS[0], "203.0.113.5"] {
        let place = |address| match address == ip(unknown) {
            true => Place::Unknown,
            false => Place::Elsewhere,
        };
        let request = Request {
            client: ip(HOSTS[0]),
            destination: SERVERS[0].parse().unwrap(),
            as_client: false,
            compressed: false,
        };
        assert_eq!(reach.check(&request, place), Err(Forbidden::Unknown));
    }
}

#[test]
fn packets_follow_from_and_to_but_reach_attached_networks() {
    let admits = |reach: &Reach, from: &str, to: &str, port| {
        let (from, to) = (ip(from), ip(to));
        reach.admits(&PacketEnds { from, to, port })
    };
    let any = reach("", "from = [\"10.6.0.0/16\"]");
    assert!(admits(&any, HOSTS[0], "10.77.9.7", Some(80)));
    assert!(admits(&any, HOSTS[0], "239.1.2.3", Some(80)));
    assert!(!admits(&any, "10.6.0.1", "10.77.9.7", Some(80)));
    assert!(!admits(&any, HOSTS[0], "10.6.0.1", Some(80)));
    for odd in ["169.254.169.254", "127.0.0.1"] {
        assert!(!admits(&any, HOSTS[0], odd, Some(80)));
        assert!(!admits(&any, odd, "10.77.9.7", Some(80)));
    }
    let some = reach(
        "from = [\"10.5.0.0/16\"]\nto = [\"10.77.9.0/24:80\", \"239.0.0.0/8\"]",
        "",
    );
    assert!(admits(&some, HOSTS[0], "10.77.9.7", Some(80)));
    assert!(admits(&some, HOSTS[0], "239.1.2.3", Some(5)));
    assert!(!admits(&some, HOSTS[0], "10.77.9.7", Some(81)));
    // Errors are about packets to hosts for which the peer speaks.
    assert!(any.admits_error_about(ip(HOSTS[0])));
    assert!(!any.admits_error_about(ip("10.6.0.1")));
    assert!(admits(&some, HOSTS[0], "10.77.9.7", None), "without ports");
    assert!(!admits(&some, HOSTS[0], "10.77.8.7", None));
    assert!(!admits(&some, "10.4.0.1", "10.77.9.7", Some(80)));
}

#[test]
fn entries_are_written_as_they_are_read() {
    for text in [
        "default",
        "10.0.0.0/8",
        "192.0.2.7/32:8000-8100",
        "10.77.9.0/24:80,443",
        "fd00::/8",
        "[fd00:9::/64]:443",
    ] {
        let value = DeValue::String(text.into());
        assert_eq!(Targets.read(&value).unwrap().to_string(), text);
    }
    for text in [
        "",
        "any",
        "10.0.0.1/8",
        "10.0.0.0/8:",
        "10.0.0.0/8:0",
        "10.0.0.0/8:80,",
        "fd00::/8:443",
        "[fd00::/8]",
        "[fd00::/8]:x",
        "10.0.0.0/8:9-8",
    ] {
        let value = DeValue::String(text.into());
        assert!(Targets.read(&value).is_err(), "{text}");
    }
}

/// A naive form of the rules for destinations: bit by bit, for one family and one entry.
fn permits(address: u32, port: u16, entry: Option<(u32, u8, u16)>) -> bool {
    let bits = |address: u32, length: u8| (0..length).map(move |bit| address >> (31 - bit) & 1);
    let within = |net: &str| {
        let net: Ipv4Net = net.parse().unwrap();
        bits(address, net.prefix_len()).eq(bits(net.addr().into(), net.prefix_len()))
    };
    let never = [
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "255.255.255.255/32",
    ];
    let private = [
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
    ];
    let here = place(Ipv4Addr::from(address).into());
    if never.into_iter().any(within) {
        return false;
    }
    match entry {
        None => match here {
            Place::Own => false,
            Place::Elsewhere => true,
            _ => !private.into_iter().any(within),
        },
        Some((net, length, only)) => {
            let named = bits(address, length).eq(bits(net, length)) && (only == 0 || only == port);
            named && (here != Place::Own || length == 32)
        }
    }
}

#[test]
fn compressed_flows_are_refused_where_compress_is_false() {
    let ask = |keys: &str, compressed| {
        let request = Request {
            client: ip(HOSTS[0]),
            destination: SERVERS[0].parse().unwrap(),
            as_client: false,
            compressed,
        };
        reach(keys, "").check(&request, place)
    };
    assert_eq!(ask("", true), Ok(()));
    assert_eq!(ask("compress = false", false), Ok(()));
    assert_eq!(ask("compress = false", true), Err(Forbidden::Compressed));
}

proptest! {
    #[test]
    fn destinations_are_permitted_as_by_the_naive_rules(
        near in prop_oneof![Just(0x0a4d_0900_u32), Just(0xc633_6400), Just(0xa9fe_a900), any::<u32>()],
        bits in any::<u8>(),
        entry in prop::option::of((0_u32..0x200, 24_u8..=32, 0_u16..3)),
        port in 1_u16..3,
    ) {
        let address = near & !0xff | u32::from(bits);
        let entry = entry.map(|(offset, length, port)| (address ^ offset, length, port));
        let targets = entry.map(|(net, length, port)| {
            let net = Ipv4Net::new(net.into(), length).unwrap().trunc();
            let ports = Vec::from_iter((port > 0).then(|| PortRange::single(port)));
            vec![Target::Net { net: net.into(), ports }]
        });
        let reach = Reach::new(None, targets, Vec::new());
        let request = Request {
            client: ip(HOSTS[0]),
            destination: SocketAddr::new(Ipv4Addr::from(address).into(), port),
            as_client: false,
            compressed: false,
        };
        let is_permitted = reach.check(&request, place).is_ok();
        prop_assert_eq!(is_permitted, permits(address, port, entry), "{:?}", request);
    }
}

#[test]
fn an_ipv4_address_within_an_ipv6_one_is_checked_as_well() {
    let any = reach("", "from = [\"10.6.0.0/16\"]");
    let within = |address: Ipv4Addr| {
        let [a, b, c, d] = address.octets();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let words = [
            format!("64:ff9b::{high:x}:{low:x}"),
            format!("2002:{high:x}:{low:x}::1"),
            format!("::ffff:0:{high:x}:{low:x}"),
        ];
        let local = LOCAL_LENGTHS.map(|length| local_nat64(address, length, &[]).to_string());
        [&words[..], &local].concat()
    };
    for (address, expected) in [
        ([203, 0, 113, 5], Ok(())),
        ([169, 254, 169, 254], Err(Forbidden::Destination)),
        ([127, 0, 0, 1], Err(Forbidden::Destination)),
        ([10, 77, 9, 1], Err(Forbidden::Own)),
        ([10, 77, 9, 7], Err(Forbidden::Attached)),
        ([10, 6, 1, 1], Err(Forbidden::OfOther)),
    ] {
        for text in within(address.into()) {
            assert_eq!(ask_to(&any, &format!("[{text}]:80")), expected, "{text}");
            let ends = PacketEnds {
                from: ip(HOSTS[1]),
                to: ip(&text),
                port: Some(80),
            };
            let by_filter = [Err(Forbidden::Own), Err(Forbidden::Attached)];
            let admitted = expected.is_ok() || by_filter.contains(&expected);
            assert_eq!(any.admits(&ends), admitted, "{text}");
        }
    }
}

/// Lengths of a translator's prefix within `64:ff9b:1::/48`.
const LOCAL_LENGTHS: [usize; 4] = [48, 56, 64, 96];

/// Returns the address of RFC 6052 section 2.2 with a prefix `64:ff9b:1::` of that length, and
/// these octets after the IPv4 address.
fn local_nat64(address: Ipv4Addr, length: usize, suffix: &[u8]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets[..6].copy_from_slice(&[0, 0x64, 0xff, 0x9b, 0, 1]);
    let places = (length / 8..16).filter(|place| *place != 8);
    for (place, octet) in places.zip(address.octets().iter().chain(suffix)) {
        octets[place] = *octet;
    }
    octets.into()
}

#[test]
fn an_address_of_local_nat64_is_checked_by_each_length_of_the_prefix() {
    let any = reach("", "from = [\"10.6.0.0/16\"]");
    let ask = |address: Ipv6Addr| ask_to(&any, &format!("[{address}]:80"));
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    assert_eq!(
        local_nat64(metadata, 48, &[]),
        ip("64:ff9b:1:a9fe:a9:fe00::")
    );
    assert_eq!(local_nat64(metadata, 56, &[]), ip("64:ff9b:1:a9:fe:a9fe::"));
    assert_eq!(
        local_nat64(metadata, 64, &[]),
        ip("64:ff9b:1:0:a9:fea9:fe00:0")
    );
    assert_eq!(local_nat64(metadata, 96, &[]), ip("64:ff9b:1::a9fe:a9fe"));
    // Translators may ignore what follows.
    for suffix in [
        &[][..],
        &[8, 8, 8, 8, 8],
        &[0, 8, 8, 8, 8],
        &[1],
        &[0xff; 5],
    ] {
        for length in LOCAL_LENGTHS {
            for forbidden in [metadata, [127, 0, 0, 1].into()] {
                let address = local_nat64(forbidden, length, suffix);
                assert_eq!(ask(address), Err(Forbidden::Destination), "{address}");
            }
            // Some suffixes are no host's by another length.
            for forbidden in [[10, 77, 9, 1], [10, 77, 9, 7], [10, 6, 1, 1]] {
                let address = local_nat64(forbidden.into(), length, suffix);
                assert!(ask(address).is_err(), "{address}");
            }
        }
    }
    // Prefixes of 96 bits with other bits, and with those of another address.
    for (text, expected) in [
        ("64:ff9b:1:abcd::cb00:7105", Ok(())),
        ("64:ff9b:1:abcd::a9fe:a9fe", Err(Forbidden::Destination)),
        ("64:ff9b:1:abcd::a4d:907", Err(Forbidden::Attached)),
        ("64:ff9b:1:7f00::cb00:7105", Err(Forbidden::Destination)),
        // Nothing but zeros leads nowhere.
        ("64:ff9b:1::", Err(Forbidden::Destination)),
        ("64:ff9b:1::1", Err(Forbidden::Destination)),
    ] {
        assert_eq!(ask_to(&any, &format!("[{text}]:80")), expected, "{text}");
    }
    // An entry for the address permits what may be permitted, by each reading.
    let own = local_nat64([10, 77, 9, 1].into(), 48, &[]);
    let named = reach(&format!("to = [\"{own}\"]"), "");
    assert_eq!(ask_to(&named, &format!("[{own}]:80")), Ok(()));
    let never = local_nat64(metadata, 48, &[]);
    let named = reach(&format!("to = [\"{never}\"]"), "");
    let asked = ask_to(&named, &format!("[{never}]:80"));
    assert_eq!(asked, Err(Forbidden::Destination));
}

proptest! {
    /// Against octets as strings of bits: a reading that is forbidden alone forbids the address.
    #[test]
    fn no_length_of_the_prefix_leads_to_a_forbidden_address(bits in any::<[u8; 10]>()) {
        let any = reach("", "");
        let mut octets = [0; 16];
        octets[..6].copy_from_slice(&[0, 0x64, 0xff, 0x9b, 0, 1]);
        octets[6..].copy_from_slice(&bits);
        let address = Ipv6Addr::from(octets);
        let bits: String = octets.iter().map(|octet| format!("{octet:08b}")).collect();
        for length in LOCAL_LENGTHS {
            let places = (length..128).filter(|place| !(64..72).contains(place));
            let reading: String = places.take(32).map(|place| &bits[place..=place]).collect();
            let reading = Ipv4Addr::from(u32::from_str_radix(&reading, 2).unwrap());
            let alone = ask_to(&any, &format!("{reading}:80"));
            if alone.is_err() && reading.octets()[0] != 0 {
                prop_assert!(ask_to(&any, &format!("[{address}]:80")).is_err(), "{}", reading);
            }
        }
    }
}

#[test]
fn a_family_is_out_of_reach_without_a_route_unless_an_entry_names_hosts_of_it() {
    let reach = |to: Option<&[&str]>| {
        let target = |text: &&str| match *text {
            "default" => Target::Default,
            net => Target::Net {
                net: net.parse().expect("a prefix"),
                ports: Vec::new(),
            },
        };
        let to = to.map(|to| to.iter().map(target).collect());
        Reach::new(None, to, Vec::new())
    };
    let has = |to: Option<&[&str]>, routes| {
        [true, false].map(|is_ipv4| reach(to).has_any(is_ipv4, routes))
    };
    for to in [None, Some(&["default"][..])] {
        assert_eq!(has(to, Extent::Beyond), [true; 2]);
        assert_eq!(has(to, Extent::Beside), [false; 2]);
    }
    let both = Some(&["default", "fd00::/8"][..]);
    assert_eq!(has(both, Extent::Beside), [false, true]);
    assert_eq!(has(both, Extent::Nowhere), [false; 2]);
    // The others may reach no host of IPv6, whatever routes there are.
    assert_eq!(has(Some(&["10.0.0.0/8"]), Extent::Beyond), [true, false]);
    assert_eq!(has(Some(&[]), Extent::Beyond), [false; 2]);
}

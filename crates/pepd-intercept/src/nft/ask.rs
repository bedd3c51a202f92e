//! Queries to nf_tables over netlink, without running `nft`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use pepd_sys::netlink_bytes::{attributes, error, messages, request, take_dump};

/// Subsystem of nf_tables messages (`NFNL_SUBSYS_NFTABLES << 8`).
const SUBSYSTEM: u16 = 10 << 8;
/// `NFT_MSG_NEWTABLE`: answer with a table.
const NEW_TABLE: u16 = SUBSYSTEM;
/// `NFT_MSG_GETTABLE`: query for a table.
const GET_TABLE: u16 = SUBSYSTEM + 1;
/// `NFT_MSG_NEWRULE`: answer with a rule.
const NEW_RULE: u16 = SUBSYSTEM + 6;
/// `NFT_MSG_GETRULE`: query for rules.
const GET_RULE: u16 = SUBSYSTEM + 7;
/// `NFTA_RULE_CHAIN`.
const RULE_CHAIN: u16 = 2;
/// `NFTA_TABLE_HANDLE`.
const TABLE_HANDLE: u16 = 4;
/// `NFT_MSG_NEWGEN`: answer with the ruleset's generation.
const NEW_GENERATION: u16 = SUBSYSTEM + 15;
/// `NFT_MSG_GETGEN`: query for the ruleset's generation.
const GET_GENERATION: u16 = SUBSYSTEM + 16;
/// `NFTA_GEN_ID`.
const GENERATION: u16 = 1;
/// `NFT_MSG_NEWOBJ`: answer with a counter.
const NEW_OBJECT: u16 = SUBSYSTEM + 18;
/// `NFT_MSG_GETOBJ`: query for counters.
const GET_OBJECT: u16 = SUBSYSTEM + 19;
/// `NFT_MSG_NEWSETELEM`: answer with an element of a set or map.
const NEW_ELEMENT: u16 = SUBSYSTEM + 12;
/// `NFT_MSG_GETSETELEM`: query for an element.
const GET_ELEMENT: u16 = SUBSYSTEM + 13;
/// `NFTA_TABLE_NAME`, `NFTA_RULE_TABLE`, `NFTA_OBJ_TABLE`, `NFTA_SET_ELEM_LIST_TABLE`.
const TABLE_NAME: u16 = 1;
/// `NFTA_SET_ELEM_LIST_SET`.
const ELEMENTS_SET: u16 = 2;
/// `NFTA_SET_ELEM_LIST_ELEMENTS`.
const ELEMENTS: u16 = 3;
/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
/// `NFTA_SET_ELEM_KEY`.
const ELEMENT_KEY: u16 = 1;
/// `NFTA_SET_ELEM_DATA`.
const ELEMENT_DATA: u16 = 2;
/// `NFTA_DATA_VALUE`.
const DATA_VALUE: u16 = 1;
/// `NFTA_OBJ_NAME`.
const OBJECT_NAME: u16 = 2;
/// `NFTA_OBJ_TYPE`.
const OBJECT_TYPE: u16 = 3;
/// `NFTA_OBJ_DATA`.
const OBJECT_DATA: u16 = 4;
/// `NFT_OBJECT_COUNTER`.
const COUNTER: u32 = 1;
/// `NFTA_COUNTER_PACKETS`.
const COUNTER_PACKETS: u16 = 2;
/// `NLA_F_NESTED`: flag of an attribute that contains attributes.
const NESTED: u16 = 0x8000;
/// `NFPROTO_INET`: tables for IPv4 and IPv6.
const INET: u8 = 1;

/// Offsets of `nlmsg_seq` in the header.
const SEQUENCE: std::ops::Range<usize> = 8..12;
/// Bytes of the `struct nfgenmsg` behind it.
const GENERIC_BYTES: usize = 4;
/// Maximum bytes of one answer of the kernel (`NLMSG_GOODSIZE`).
const ANSWER_BYTES: usize = 32 * 1024;

/// Returns the generation of the ruleset of all programs; each change increments it.
///
/// # Errors
/// When no descriptors or memory are left, or the kernel's answer is malformed.
pub fn generation() -> io::Result<u32> {
    let flags = libc::NLM_F_REQUEST as u16;
    let fd = ask(&query(GET_GENERATION, flags, &[]))?;
    let mut answer = [0; 1024];
    let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    generation_of(&answer[..length])
}

/// Returns true if an `inet` table of this name exists.
///
/// # Errors
/// When no descriptors or memory are left, or the kernel's answer is malformed.
pub(crate) fn table_exists(name: &str) -> io::Result<bool> {
    Ok(table_handle(name)?.is_some())
}

/// Returns the number that the kernel has given to an `inet` table, 0 before Linux 4.16; `None` if
/// it does not exist.
///
/// # Errors
/// When no descriptors or memory are left, or the kernel's answer is malformed.
pub(super) fn table_handle(name: &str) -> io::Result<Option<u64>> {
    let flags = libc::NLM_F_REQUEST as u16;
    let fd = ask(&query(GET_TABLE, flags, &[(TABLE_NAME, &terminated(name))]))?;
    let mut answer = [0; 1024];
    // The kernel has answered before send() returns.
    let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    Ok(found(&answer[..length], NEW_TABLE)?.map(handle_of))
}

fn handle_of(body: &[u8]) -> u64 {
    let table = body.get(GENERIC_BYTES..).unwrap_or_default();
    let handle = find(table, TABLE_HANDLE).and_then(|handle| handle.try_into().ok());
    handle.map_or(0, u64::from_be_bytes)
}

/// Returns the number of rules in each chain of an `inet` table that has some.
///
/// # Errors
/// When no descriptors or memory are left, or the kernel's answer is malformed.
pub(super) fn rules_of(table: &str) -> io::Result<BTreeMap<String, usize>> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let table = terminated(table);
    let fd = ask(&query(GET_RULE, flags, &[(TABLE_NAME, &table)]))?;
    let (mut rules, mut answer) = (BTreeMap::new(), vec![0; ANSWER_BYTES]);
    loop {
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        if take_rules(&answer[..length], &table, &mut rules)? {
            return Ok(rules);
        }
    }
}

/// Counts the rules of one part of a dump by chain. Returns true for the last part.
fn take_rules(
    answer: &[u8],
    table: &[u8],
    rules: &mut BTreeMap<String, usize>,
) -> io::Result<bool> {
    take_dump(answer, NEW_RULE, |body| {
        let rule = body.get(GENERIC_BYTES..).unwrap_or_default();
        let chain = find(rule, RULE_CHAIN).and_then(|chain| chain.strip_suffix(&[0]));
        let chain = chain.and_then(|chain| std::str::from_utf8(chain).ok());
        // Kernels before 4.4 list the rules of all tables.
        if let Some(chain) = chain.filter(|_| find(rule, TABLE_NAME) == Some(table)) {
            *rules.entry(chain.to_owned()).or_default() += 1;
        }
    })
}

/// Returns the packets counted by the named counters of an `inet` table.
///
/// # Errors
/// When no descriptors or memory are left, the table does not exist (`NotFound`), or the kernel's
/// answer is malformed.
pub fn counters(table: &str) -> io::Result<BTreeMap<String, u64>> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let attributes = [
        (TABLE_NAME, &terminated(table)[..]),
        (OBJECT_TYPE, &COUNTER.to_be_bytes()),
    ];
    let fd = ask(&query(GET_OBJECT, flags, &attributes))?;
    let mut counters = BTreeMap::new();
    let mut answer = vec![0; ANSWER_BYTES];
    loop {
        let length = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        if take_counters(&answer[..length], &mut counters)? {
            break;
        }
    }
    match counters.is_empty() {
        // pepd's tables always have counters; a dump of a missing table does not fail.
        true => Err(io::ErrorKind::NotFound.into()),
        false => Ok(counters),
    }
}

/// Returns the mark under a key of a map of an `inet` table; `None` when the key, map or table does
/// not exist.
///
/// # Errors
/// When no descriptors or memory are left, or the kernel's answer is malformed.
pub fn element(table: &str, map: &str, key: &[u8]) -> io::Result<Option<u32>> {
    mark(ask_for(table, map, key, &mut [0; 1024])?)
}

/// Returns whether a set of an `inet` table contains this key; false when the set or table does not
/// exist.
///
/// # Errors
/// As [`element`].
pub fn contains(table: &str, set: &str, key: &[u8]) -> io::Result<bool> {
    let mut answer = [0; 1024];
    let answer = ask_for(table, set, key, &mut answer)?;
    Ok(found(answer, NEW_ELEMENT)?.is_some())
}

/// Returns the kernel's answer to a query for an element of a set or map.
fn ask_for<'a>(table: &str, set: &str, key: &[u8], answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let key = attribute(DATA_VALUE, key);
    let key = attribute(ELEMENT_KEY | NESTED, &key);
    let elements = attribute(ELEMENT | NESTED, &key);
    let flags = libc::NLM_F_REQUEST as u16;
    let attributes = [
        (TABLE_NAME, &terminated(table)[..]),
        (ELEMENTS_SET, &terminated(set)),
        (ELEMENTS | NESTED, &elements),
    ];
    ask_again(query(GET_ELEMENT, flags, &attributes), answer)
}

fn ask(query: &[u8]) -> io::Result<OwnedFd> {
    let fd = unused_socket()?;
    send(fd.as_raw_fd(), query, MsgFlags::empty())?;
    Ok(fd)
}

fn unused_socket() -> io::Result<OwnedFd> {
    let protocol = SockProtocol::NetlinkNetFilter;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(
        AddressFamily::Netlink,
        SockType::Raw,
        flags,
        protocol,
    )?)
}

/// Socket that a thread keeps for its next query: each flow asks one. Creating and closing a socket
/// costs more than the query.
#[derive(Debug)]
struct Asker {
    socket: OwnedFd,
    /// Sequence number of the last query.
    sequence: u32,
}

thread_local! {
    static ASKER: RefCell<Option<Asker>> = const { RefCell::new(None) };
}

/// Sends a query, and returns the kernel's answer to it: one message, as this socket gets no other.
/// After an error the thread's next query has a new socket.
fn ask_again(query: Vec<u8>, answer: &mut [u8]) -> io::Result<&[u8]> {
    ASKER.with_borrow_mut(|kept| {
        let mut asker = match kept.take() {
            Some(asker) => asker,
            None => Asker {
                socket: unused_socket()?,
                sequence: 0,
            },
        };
        let length = asker.ask(query, answer)?;
        *kept = Some(asker);
        Ok(&answer[..length])
    })
}

impl Asker {
    fn ask(&mut self, mut query: Vec<u8>, answer: &mut [u8]) -> io::Result<usize> {
        self.sequence = self.sequence.wrapping_add(1);
        query[SEQUENCE].copy_from_slice(&self.sequence.to_ne_bytes());
        send(self.socket.as_raw_fd(), &query, MsgFlags::empty())?;
        loop {
            // The kernel has answered before send() returns.
            let length = recv(self.socket.as_raw_fd(), answer, MsgFlags::empty())?;
            if answers(&answer[..length], self.sequence) {
                return Ok(length);
            }
        }
    }
}

/// Returns whether an answer belongs to the query with this sequence number.
fn answers(answer: &[u8], sequence: u32) -> bool {
    answer.get(SEQUENCE) == Some(&sequence.to_ne_bytes()[..])
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn query(kind: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![INET, libc::NFNETLINK_V0 as u8, 0, 0];
    let all = attributes.iter();
    body.extend(all.flat_map(|&(kind, value)| attribute(kind, value)));
    request(kind, flags, &body)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the body of the message of this kind in an answer; `None` when the object does not
/// exist.
fn found(answer: &[u8], wanted: u16) -> io::Result<Option<&[u8]>> {
    match messages(answer).next() {
        Some((kind, body)) if kind == wanted => Ok(Some(body)),
        Some((kind, body)) if i32::from(kind) == libc::NLMSG_ERROR => match error(body)? {
            libc::ENOENT => Ok(None),
            code => Err(io::Error::from_raw_os_error(code)),
        },
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn generation_of(answer: &[u8]) -> io::Result<u32> {
    let body = found(answer, NEW_GENERATION)?;
    let of = |body: &[u8]| {
        find(body.get(GENERIC_BYTES..)?, GENERATION)?
            .try_into()
            .ok()
    };
    let generation = body.and_then(of).map(u32::from_be_bytes);
    generation.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn mark(answer: &[u8]) -> io::Result<Option<u32>> {
    let mark = |body| mark_of(body).ok_or_else(|| io::ErrorKind::InvalidData.into());
    found(answer, NEW_ELEMENT)?.map(mark).transpose()
}

fn mark_of(body: &[u8]) -> Option<u32> {
    let nested = [ELEMENTS, ELEMENT, ELEMENT_DATA, DATA_VALUE];
    let mut value = body.get(GENERIC_BYTES..)?;
    for kind in nested {
        value = find(value, kind)?;
    }
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

/// Reads the counters of one part of a dump. Returns true for the last part.
fn take_counters(answer: &[u8], counters: &mut BTreeMap<String, u64>) -> io::Result<bool> {
    take_dump(answer, NEW_OBJECT, |body| counters.extend(counter(body)))
}

fn counter(body: &[u8]) -> Option<(String, u64)> {
    let object = body.get(GENERIC_BYTES..)?;
    let name = find(object, OBJECT_NAME)?;
    let packets = find(find(object, OBJECT_DATA)?, COUNTER_PACKETS)?;
    let name = std::str::from_utf8(name.strip_suffix(&[0])?).ok()?;
    Some((
        name.to_owned(),
        u64::from_be_bytes(packets.try_into().ok()?),
    ))
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut attributes = attributes(bytes);
    attributes.find_map(|(kind, value)| (kind == wanted).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = request(kind, 0, body);
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    fn object(name: &str, packets: u64) -> Vec<u8> {
        let data = [
            attribute(1, &0_u64.to_be_bytes()),
            attribute(COUNTER_PACKETS, &packets.to_be_bytes()),
        ]
        .concat();
        let body = [
            vec![INET, 0, 0, 0],
            attribute(TABLE_NAME, b"pepd\0"),
            attribute(OBJECT_NAME, &terminated(name)),
            attribute(OBJECT_DATA | NESTED, &data),
        ];
        message(NEW_OBJECT, &body.concat())
    }

    #[test]
    fn answers_of_the_kernel_about_a_table_are_parsed() {
        let error = libc::NLMSG_ERROR as u16;
        let answer = |code: i32| message(error, &code.to_ne_bytes());
        let exists = |answer: &[u8]| found(answer, NEW_TABLE).map(|body| body.is_some());
        assert!(exists(&message(NEW_TABLE, &[0; 20])).expect("an answer"));
        assert!(!exists(&answer(-libc::ENOENT)).expect("an answer"));
        let refused = exists(&answer(-libc::EPERM)).expect_err("no answer");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        for length in [0, 5, 18] {
            assert!(exists(&answer(-libc::ENOENT)[..length]).is_err());
        }
    }

    #[test]
    fn the_number_of_a_ruleset_is_understood() {
        let body = [vec![0; GENERIC_BYTES], attribute(GENERATION, &[0, 0, 1, 2])];
        let answer = message(NEW_GENERATION, &body.concat());
        assert_eq!(generation_of(&answer).expect("an answer"), 258);
        for length in 0..answer.len() {
            assert!(generation_of(&answer[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn the_mark_of_an_element_is_understood() {
        let data = attribute(
            ELEMENT_DATA | NESTED,
            &attribute(DATA_VALUE, &7_u32.to_ne_bytes()),
        );
        let key = attribute(ELEMENT_KEY | NESTED, &attribute(DATA_VALUE, &[1; 16]));
        let element = attribute(ELEMENT | NESTED, &[key, data].concat());
        let body = [
            vec![INET, 0, 0, 0],
            attribute(TABLE_NAME, b"pepd\0"),
            attribute(ELEMENTS | NESTED, &element),
        ];
        let answer = message(NEW_ELEMENT, &body.concat());
        assert_eq!(mark(&answer).expect("an answer"), Some(7));
        for length in 0..answer.len() {
            assert!(mark(&answer[..length]).is_err(), "{length}");
        }
        let missing = message(libc::NLMSG_ERROR as u16, &(-libc::ENOENT).to_ne_bytes());
        assert_eq!(mark(&missing).expect("an answer"), None);
    }

    /// Needs root, as pepd does. No such table exists.
    #[test]
    fn a_thread_asks_by_one_socket_and_takes_no_other_querys_answer() {
        let descriptor = || ASKER.with_borrow(|kept| kept.as_ref().map(|a| a.socket.as_raw_fd()));
        let ask = || element("pepd_no_such_table", "marks", &[0; 4]).expect("an answer");
        assert_eq!((descriptor(), ask()), (None, None));
        let first = descriptor().expect("it is kept");
        // As if a query had been given up between its two calls.
        let stale = query(GET_GENERATION, libc::NLM_F_REQUEST as u16, &[]);
        send(first, &stale, MsgFlags::empty()).expect("sent");
        assert_eq!((ask(), descriptor()), (None, Some(first)));
        let too_short = query(GET_GENERATION, libc::NLM_F_REQUEST as u16, &[]);
        assert!(
            ask_again(too_short, &mut [0; 4]).is_err(),
            "no whole header"
        );
        assert_eq!(descriptor(), None, "socket kept after an error");
        assert_eq!(ask(), None);
    }

    #[test]
    fn counters_come_in_several_parts() {
        let mut counters = BTreeMap::new();
        let first = [object("syns", 7), object("passed", 0)].concat();
        assert!(!take_counters(&first, &mut counters).expect("a part"));
        let last = [object("redirected4_0", u64::MAX), message(3, &[0; 4])].concat();
        assert!(take_counters(&last, &mut counters).expect("a part"));
        let expected = [("passed", 0), ("redirected4_0", u64::MAX), ("syns", 7)];
        let expected = expected.map(|(name, packets)| (name.to_owned(), packets));
        assert_eq!(counters, BTreeMap::from(expected));
    }

    #[test]
    fn rules_are_counted_by_chain_of_the_table() {
        let rule = |table: &[u8], chain: &[u8]| {
            let names = [attribute(TABLE_NAME, table), attribute(RULE_CHAIN, chain)];
            let body = [vec![INET, 0, 0, 0], names.concat()];
            message(NEW_RULE, &body.concat())
        };
        let mut rules = BTreeMap::new();
        let all = [
            rule(b"pepd\0", b"sites\0"),
            rule(b"other\0", b"sites\0"),
            rule(b"pepd\0", b"gate\0"),
            rule(b"pepd\0", b"sites\0"),
        ];
        assert!(!take_rules(&all.concat(), b"pepd\0", &mut rules).expect("a part"));
        let last = message(3, &[0; 4]);
        assert!(take_rules(&last, b"pepd\0", &mut rules).expect("a part"));
        let expected = [("gate", 1), ("sites", 2)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(rules, BTreeMap::from(expected));
        let body = [
            vec![0; GENERIC_BYTES],
            attribute(TABLE_HANDLE, &7_u64.to_be_bytes()),
        ];
        assert_eq!(handle_of(&body.concat()), 7);
        assert_eq!(handle_of(&[]), 0);
    }

    #[test]
    fn bytes_that_are_cut_off_are_no_counters() {
        let whole = object("syns", 7);
        for length in 0..whole.len() {
            let mut counters = BTreeMap::new();
            let taken = take_counters(&whole[..length], &mut counters);
            assert!(counters.is_empty() && taken.is_err(), "{length}");
        }
        let mut counters = BTreeMap::new();
        assert!(take_counters(&[], &mut counters).is_err());
    }

    #[test]
    fn a_query_has_the_stated_length() {
        for name in ["a", "pepd", "pepd_roof"] {
            let query = query(GET_TABLE, 1, &[(TABLE_NAME, &terminated(name))]);
            assert_eq!(query[..4], (query.len() as u32).to_ne_bytes());
            assert_eq!(query.len() % 4, 0);
        }
    }
}

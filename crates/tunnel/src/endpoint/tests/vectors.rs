//! The complete example of docs/protocol.md.

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};

use super::*;
use crate::{
    crypto::{Identity, Initiating, MacKey, Responding},
    endpoint::{
        datagram::{
            self, CONFIRMATION, CONFIRMATION_HEADER, DATA, DATA_HEADER, INITIATION,
            INITIATION_HEADER, INITIATION_SIGNED, RESPONSE, RESPONSE_HEADER,
        },
        terms::{TERMS_LEN, Terms},
    },
};

/// Local indices of the initiator and the responder.
const INDICES: [u32; 2] = [0x0001_0203, 0x0405_0607];
const PSK: Key = [7; 32];
/// Seeds of the ephemeral keys.
const SEEDS: [Key; 2] = [[3; 32], [4; 32]];

/// Returns the private ephemeral key that a handshake draws from its seed.
fn ephemeral(seed: Key) -> Key {
    let mut key = [0; 32];
    ChaCha20Rng::from_seed(seed).fill_bytes(&mut key);
    key
}

/// Appends a name and its bytes, 32 to a line.
fn append(out: &mut String, name: &str, bytes: &[u8]) {
    for (row, bytes) in bytes.chunks(32).enumerate() {
        let name = if row == 0 { name } else { "" };
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        out.push_str(&format!(" {name:<32}{hex}\n"));
    }
}

fn append_mac(out: &mut Vec<u8>, receiver: &Key) {
    let mac = MacKey::of_recipient(receiver).mac(out);
    out.extend_from_slice(&mac);
}

/// Returns the example: a handshake, its proof, and a packet.
fn example() -> String {
    let mut text = String::new();
    let [one, two] = [private(1), private(2)];
    let publics = [public_key(&one), public_key(&two)];
    append(&mut text, "initiator's private key", &one);
    append(&mut text, "initiator's public key", &publics[0]);
    append(&mut text, "responder's private key", &two);
    append(&mut text, "responder's public key", &publics[1]);
    append(&mut text, "pre-shared key", &PSK);
    append(&mut text, "initiator's ephemeral key", &ephemeral(SEEDS[0]));
    append(&mut text, "responder's ephemeral key", &ephemeral(SEEDS[1]));
    let terms = Terms::from_config(&session_config(), 5, None, 0).emit();
    append(&mut text, "terms of both", &terms);

    let mut initiation = Vec::new();
    datagram::begin(INITIATION, INDICES[0], &mut initiation);
    let (us, seed) = (Identity::new(one), SEEDS[0]);
    let begun = Initiating::begin(&us, &publics[1], &PSK, seed, &terms, &mut initiation);
    append_mac(&mut initiation, &publics[1]);
    initiation.extend_from_slice(&[0; 16]);
    append(&mut text, "INITIATION", &initiation);
    let public = &initiation[INITIATION_HEADER..][..32];
    assert_eq!(public, public_key(&ephemeral(SEEDS[0])));

    let (us, mut payload) = (Identity::new(two), [0; TERMS_LEN]);
    let message = &initiation[INITIATION_HEADER..INITIATION_SIGNED];
    let read = Responding::read(&us, SEEDS[1], message, &mut payload).unwrap();
    let mut response = Vec::new();
    datagram::begin(RESPONSE, INDICES[1], &mut response);
    response.extend_from_slice(&INDICES[0].to_be_bytes());
    let theirs = read.answer(&PSK, &terms, &mut response).unwrap();
    let signed = response.len();
    append_mac(&mut response, &publics[0]);
    append(&mut text, "RESPONSE", &response);
    let public = &response[RESPONSE_HEADER..][..32];
    assert_eq!(public, public_key(&ephemeral(SEEDS[1])));

    let message = &response[RESPONSE_HEADER..signed];
    let keys = begun.unwrap().finish(message, &mut payload).unwrap();
    assert_eq!(keys.name, theirs.name);
    append(&mut text, "name of the session", &keys.name.to_be_bytes());
    let mut confirmation = Vec::new();
    datagram::begin(CONFIRMATION, INDICES[1], &mut confirmation);
    keys.confirm(0, CONFIRMATION_HEADER, &mut confirmation);
    append(&mut text, "CONFIRMATION", &confirmation);
    let mut data = Vec::new();
    datagram::begin(DATA, INDICES[1], &mut data);
    data.extend_from_slice(&[0, 0, 0, 0, 3]);
    keys.seal(0, 0, DATA_HEADER, &mut data);
    append(&mut text, "DATA, number 0: PROBE", &data);
    text
}

#[test]
fn the_example_of_the_document_is_right() {
    let document = include_str!("../../../../../docs/protocol.md");
    let example = example();
    assert!(document.contains(&example), "\n{example}");
}

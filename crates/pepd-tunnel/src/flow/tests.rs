//! Flows between plain TCP sockets on loopback, through both ends of a tunnel.

use std::os::fd::AsFd as _;

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use crate::rig::{FLOWS, Rig, listener};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 253) as u8).collect()
}

/// Returns incompressible bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Returns a client and a server with a flow between them.
async fn joined(rig: &Rig) -> (TcpStream, TcpStream) {
    let listener = listener().await;
    let client = rig.client(listener.local_addr().unwrap()).await;
    let (server, _) = listener.accept().await.unwrap();
    (client, server)
}

fn reset_by(host: TcpStream) {
    let linger = Some(std::time::Duration::ZERO);
    SockRef::from(&host).set_linger(linger).unwrap();
    drop(host);
}

async fn is_reset(host: &mut TcpStream) -> bool {
    let read = host.read_to_end(&mut Vec::new()).await;
    read.is_err_and(|err| err.kind() == io::ErrorKind::ConnectionReset)
}

/// Sends 700,001 bytes upstream, and 900,000 back after their end.
async fn exchange(rig: &Rig) {
    let (mut client, mut server) = joined(rig).await;
    let (up, down) = (pattern(700_001), pattern(900_000));
    let sent = up.clone();
    let question = tokio::task::spawn_local(async move {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        client
    });
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert!(received == up);
    let mut client = question.await.unwrap();
    let sent = down.clone();
    tokio::task::spawn_local(async move { server.write_all(&sent).await.unwrap() });
    received.clear();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == down);
    rig.wait_idle().await;
    for end in [&rig.near, &rig.far] {
        let stats = Rig::stats(end);
        assert_eq!((stats.up_bytes, stats.down_bytes), (700_001, 900_000));
        assert_eq!(stats.ended_closed, 1);
    }
}

#[test]
fn both_directions_are_whole_and_each_closes_by_itself() {
    Rig::run(|rig| async move {
        exchange(&rig).await;
        assert_eq!(Rig::stats(&rig.near).tunnel_compression_blocks, 0);
    });
}

#[test]
fn compressed_flows_are_whole_too() {
    Rig::run(|rig| async move {
        rig.compress.set(true);
        exchange(&rig).await;
        for (end, plain) in [(&rig.near, 700_001), (&rig.far, 900_000)] {
            let stats = Rig::stats(end);
            assert_eq!(stats.tunnel_uncompressed_bytes, plain);
            assert!(stats.tunnel_compressed_bytes < plain / 10, "{stats:?}");
            assert_eq!(stats.tunnel_compression_blocks_refused, 0);
        }
    });
}

/// Beyond the burst, decompression waits and then goes on.
#[test]
fn a_flow_that_expands_beyond_the_pace_is_whole() {
    Rig::run(|rig| async move {
        rig.compress.set(true);
        let (mut client, mut server) = joined(&rig).await;
        let zeros = vec![0; 5 << 20];
        let question = tokio::task::spawn_local(async move {
            client.write_all(&zeros).await.unwrap();
            client.shutdown().await.unwrap();
            client
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert_eq!(received.len(), 5 << 20);
        assert!(received.iter().all(|byte| *byte == 0));
        drop((server, question.await.unwrap()));
        let stats = Rig::stats(&rig.near);
        assert!(stats.tunnel_compressed_bytes < (5 << 20) / 64, "{stats:?}");
    });
}

/// While one flow waits for a minute, the messages of another never do.
#[test]
fn a_flow_that_expands_beyond_the_pace_delays_no_other_of_its_peer() {
    Rig::run(|rig| async move {
        rig.compress.set(true);
        let (mut rogue, mut flooded) = joined(&rig).await;
        let (mut client, mut server) = joined(&rig).await;
        let zeros = tokio::task::spawn_local(async move {
            let zeros = vec![0; 64 << 20];
            let _ = rogue.write_all(&zeros).await;
            rogue
        });
        let mut received = vec![0; 4 << 20];
        flooded.read_exact(&mut received).await.unwrap();
        let read = tokio::task::spawn_local(async move {
            let _ = flooded.read_to_end(&mut received).await;
        });
        let mut message = [0; 1000];
        for sent in noise(1_000_000).chunks(1000) {
            client.write_all(sent).await.unwrap();
            server.read_exact(&mut message).await.unwrap();
            assert_eq!(message, sent);
        }
        assert!(!read.is_finished());
        read.abort();
        zeros.abort();
    });
}

#[test]
fn each_message_of_a_compressed_flow_is_answered_before_the_next() {
    Rig::run(|rig| async move {
        rig.compress.set(true);
        let (mut client, mut server) = joined(&rig).await;
        for length in [1, 15, 16, 200, 3000].repeat(20) {
            let (message, mut received) = (pattern(length), vec![0; length]);
            for host in [&mut client, &mut server] {
                host.write_all(&message).await.unwrap();
            }
            for host in [&mut server, &mut client] {
                host.read_exact(&mut received).await.unwrap();
                assert_eq!(received, message);
            }
        }
    });
}

/// Adds bytes that the near end did not produce to the stream of the only flow.
fn inject(rig: &Rig, bytes: &[u8]) {
    let core = &mut *rig.near.borrow_mut();
    let flow = core.table(0).some_flow();
    let key = Key { peer: 0, flow };
    let entry = core.entry(key).unwrap();
    let space = entry.space(bytes.len() as u64);
    entry.write(&space, bytes);
    entry.on_received(bytes.len() as u64);
    core.advance(key);
}

/// The stream contains bytes that begin no compression block.
#[test]
fn a_flow_whose_peer_compresses_nonsense_is_reset_and_counted() {
    Rig::run(|rig| async move {
        rig.compress.set(true);
        let (mut client, mut server) = joined(&rig).await;
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        inject(&rig, &[1]);
        assert!(is_reset(&mut server).await);
        assert!(is_reset(&mut client).await);
        rig.wait_idle().await;
        let stats = Rig::stats(&rig.far);
        assert_eq!(
            (stats.tunnel_compression_blocks_refused, stats.ended_error),
            (1, 1)
        );
    });
}

/// The server does not read while there is room anywhere.
#[test]
fn a_compressed_flow_whose_host_stalls_loses_nothing() {
    Rig::run(|rig| async move {
        rig.compress.set(true);
        let (mut client, mut server) = joined(&rig).await;
        let sent = noise(3_000_000);
        let expected = sent.clone();
        let sender = tokio::task::spawn_local(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            client
        });
        Rig::wait(&rig.near, |_| {
            rig.near.borrow_mut().table(0).is_full(16 << 10)
        })
        .await;
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert!(received == expected);
        drop(server);
        sender.await.unwrap();
        let stats = Rig::stats(&rig.near);
        assert!(stats.tunnel_compressed_bytes < 3_030_000, "{stats:?}");
    });
}

#[test]
fn a_refusal_and_a_destination_that_cannot_be_are_resets_with_their_reasons() {
    Rig::run(|rig| async move {
        let nobody = listener().await.local_addr().unwrap();
        assert!(is_reset(&mut rig.client(nobody).await).await);
        let nowhere = ([0, 0, 0, 0], 80).into();
        assert!(is_reset(&mut rig.client(nowhere).await).await);
        rig.wait_idle().await;
        let [near, far] = [&rig.near, &rig.far].map(Rig::stats);
        assert_eq!((near.ended_refused, near.ended_unreachable), (1, 1));
        assert_eq!((far.ended_refused, far.tunnel_flows_forbidden), (1, 1));
    });
}

#[test]
fn flows_beyond_a_peers_maximum_are_reset_and_counted_and_others_continue() {
    Rig::run(|rig| async move {
        let listener = listener().await;
        let to = listener.local_addr().unwrap();
        let mut joined = Vec::new();
        for _ in 0..FLOWS {
            let client = rig.client(to).await;
            joined.push((client, listener.accept().await.unwrap().0));
        }
        assert!(is_reset(&mut rig.client(to).await).await);
        assert_eq!(Rig::stats(&rig.far).tunnel_flows_refused, 1);
        Rig::wait(&rig.near, |stats| stats.ended_peer_limit == 1).await;
        let (mut client, mut server) = joined.pop().unwrap();
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        drop((client, server));
        Rig::wait(&rig.far, |stats| stats.flows_open < FLOWS.into()).await;
        let client = rig.client(to).await;
        let (mut server, _) = listener.accept().await.unwrap();
        drop(client);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    });
}

#[test]
fn a_reset_of_either_host_reaches_the_other_after_what_came_before() {
    Rig::run(|rig| async move {
        let (mut client, mut server) = joined(&rig).await;
        server.write_all(&pattern(100_000)).await.unwrap();
        let mut received = vec![0; 100_000];
        client.read_exact(&mut received[..1]).await.unwrap();
        reset_by(server);
        client.read_exact(&mut received[1..]).await.unwrap();
        assert!(received == pattern(100_000));
        assert!(is_reset(&mut client).await);

        let (mut client, mut server) = joined(&rig).await;
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        reset_by(client);
        assert!(is_reset(&mut server).await);
        rig.wait_idle().await;
        for end in [&rig.near, &rig.far] {
            let stats = Rig::stats(end);
            assert_eq!((stats.ended_server_reset, stats.ended_client_reset), (1, 1));
        }
    });
}

/// A flow with the maximum of bytes in flight: its leg is not read any more, and has to be watched.
#[test]
fn a_reset_reaches_a_sender_that_is_stalled() {
    Rig::run(|rig| async move {
        let (mut client, server) = joined(&rig).await;
        let stalled = tokio::task::spawn_local(async move {
            let chunk = pattern(1 << 16);
            while client.write_all(&chunk).await.is_ok() {}
        });
        // Until the unread bytes fill every ring.
        Rig::wait(&rig.near, |_| {
            let flow = |core: &mut crate::core::Core| core.table(0).is_full(1);
            flow(&mut rig.near.borrow_mut())
        })
        .await;
        reset_by(server);
        stalled.await.unwrap();
        rig.wait_idle().await;
        assert_eq!(Rig::stats(&rig.near).ended_server_reset, 1);
    });
}

/// Sends until all buffers of a stalled download are full. Returns the bytes that pepd's kernel has
/// acknowledged, some of which pepd has not read.
async fn stall(rig: &Rig, server: &mut TcpStream) -> Vec<u8> {
    let is_taken = |server: &TcpStream| {
        let unsent = pepd_sys::socket::unacknowledged(server.as_fd());
        unsent.expect("a socket") == 0
    };
    let mut sent = 0;
    let mut write = async |server: &mut TcpStream, len: usize| {
        let bytes = pattern(sent + len);
        server.write_all(&bytes[sent..]).await.unwrap();
        sent += len;
        while !is_taken(server) {
            tokio::task::yield_now().await;
        }
        bytes
    };
    while !rig.far.borrow_mut().table(0).is_full(1) {
        write(server, 1 << 12).await;
    }
    write(server, 30_000).await
}

#[test]
fn what_the_kernel_holds_of_a_leg_that_fails_arrives_and_then_its_end() {
    Rig::run(|rig| async move {
        for (fin, says_more) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut client, mut server) = joined(&rig).await;
            let sent = stall(&rig, &mut server).await;
            if fin {
                // Bytes that come behind it are answered with an RST.
                server.shutdown().await.unwrap();
                drop(server);
                client.write_all(b"more").await.unwrap();
            } else {
                reset_by(server);
            }
            if says_more {
                client.write_all(b"still more").await.unwrap();
            }
            let mut received = vec![0; sent.len()];
            client.read_exact(&mut received).await.unwrap();
            assert!(received == sent, "{fin} {says_more}");
            let end = client.read(&mut [0]).await;
            match fin {
                true => assert_eq!(end.unwrap(), 0, "its FIN came first"),
                false => assert!(end.is_err()),
            }
            drop(client);
            rig.wait_idle().await;
        }
    });
}

/// The last bytes arrive too, though no more follow, and the end.
#[test]
fn bytes_that_come_in_small_pieces_all_arrive_and_none_waits_for_others() {
    Rig::run(|rig| async move {
        let (mut client, mut server) = joined(&rig).await;
        client.set_nodelay(true).unwrap();
        let mut received = vec![0; 64_000];
        for round in 0..20 {
            let sent = pattern(64_000);
            let pieces = sent.clone();
            let writes = async {
                for piece in pieces.chunks(64) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let reads = server.read_exact(&mut received);
            let ((), read) = tokio::join!(writes, reads);
            read.unwrap();
            assert!(received == sent, "round {round}");
        }
        client.write_all(b"end").await.unwrap();
        drop(client);
        received.clear();
        server.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"end");
    });
}

#[test]
fn a_flow_outlives_an_outage_with_every_byte() {
    Rig::run(|rig| async move {
        let (mut client, mut server) = joined(&rig).await;
        let sent = pattern(2_000_000);
        let expected = sent.clone();
        tokio::task::spawn_local(async move { client.write_all(&sent).await.unwrap() });
        let mut received = vec![0; expected.len()];
        let (first, rest) = received.split_at_mut(300_000);
        server.read_exact(first).await.unwrap();
        rig.cut_wire(30).await;
        rig.restore_wire();
        server.read_exact(rest).await.unwrap();
        assert!(received == expected);
    });
}

#[test]
fn flows_whose_peer_has_ended_the_session_are_resets_for_their_hosts() {
    Rig::run(|rig| async move {
        let (mut client, mut server) = joined(&rig).await;
        client.write_all(b"x").await.unwrap();
        server.read_exact(&mut [0]).await.unwrap();
        for end in [&rig.near, &rig.far] {
            end.borrow_mut().table(0).on_peer_closed();
        }
        assert!(is_reset(&mut server).await);
        assert!(is_reset(&mut client).await);
        rig.wait_idle().await;
        for end in [&rig.near, &rig.far] {
            assert_eq!(Rig::stats(end).ended_peer_restarted, 1);
        }
    });
}

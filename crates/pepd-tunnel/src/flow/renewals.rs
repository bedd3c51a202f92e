//! Flows whose session is renewed repeatedly at random moments: complete to the last byte, and
//! ended as by their hosts.

use std::{cell::Cell, rc::Rc, time::Duration};

use socket2::SockRef;
use splitmix::SplitMix64;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::spawn_local,
    time::sleep,
};

use crate::rig::{FLOWS, Rig, listener};

/// Creates a generator seeded by `SEED`, or at random; prints the seed.
fn drawn(what: &str) -> SplitMix64 {
    let given = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let bytes = pepd_sys::keys::random().expect("randomness");
    let drawn = u64::from(u32::from_be_bytes(*bytes.first_chunk().expect("32 bytes")));
    let seed = given.unwrap_or(drawn);
    println!("{what}: SEED={seed}");
    SplitMix64::new(seed)
}

/// End of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Both hosts send everything and close.
    Whole,
    /// One host resets the flow after some bytes.
    Reset { by_client: bool, after: u64 },
}

/// Returns byte `at` of flow `flow` in a direction.
fn byte(flow: u64, up: bool, at: u64) -> u8 {
    let mut x = at ^ flow << 40 ^ u64::from(up) << 60;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 27)) as u8
}

/// Sends bytes in pieces, then the end.
async fn send(mut to: OwnedWriteHalf, flow: u64, up: bool, len: u64, mut draw: SplitMix64) -> bool {
    let mut at = 0;
    while at < len {
        let count = (1 + draw.below(20_000)).min(len - at);
        let piece: Vec<u8> = (at..at + count).map(|at| byte(flow, up, at)).collect();
        if to.write_all(&piece).await.is_err() {
            return false;
        }
        at += count;
        if draw.below(4) == 0 {
            sleep(Duration::from_millis(draw.below(30))).await;
        }
    }
    to.shutdown().await.is_ok()
}

/// Receives to the end, or `most` bytes. Returns the number of bytes, and whether the end was
/// clean.
async fn receive(from: &mut OwnedReadHalf, flow: u64, up: bool, most: u64) -> (u64, bool) {
    let (mut buffer, mut at) = (vec![0; 16 << 10], 0);
    while at < most {
        match from.read(&mut buffer).await {
            Ok(0) => return (at, true),
            Err(_) => return (at, false),
            Ok(count) => {
                for (n, found) in buffer[..count].iter().enumerate() {
                    assert_eq!(
                        *found,
                        byte(flow, up, at + n as u64),
                        "flow {flow}, {at} + {n}"
                    );
                }
                at += count as u64;
            }
        }
    }
    (at, false)
}

fn reset_by(one: OwnedReadHalf, other: OwnedWriteHalf) {
    let host = one.reunite(other).expect("of one socket");
    SockRef::from(&host)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

async fn serve_one(
    flow: u64,
    hosts: [TcpStream; 2],
    lens: [u64; 2],
    end: End,
    mut draw: SplitMix64,
) {
    let [(mut client_in, client_out), (mut server_in, server_out)] =
        hosts.map(TcpStream::into_split);
    let mut next = || SplitMix64::new(draw.below(u64::MAX));
    let [up, down] = lens;
    match end {
        End::Whole => {
            let sent = [
                spawn_local(send(client_out, flow, true, up, next())),
                spawn_local(send(server_out, flow, false, down, next())),
            ];
            let (came_up, came_down) = tokio::join!(
                receive(&mut server_in, flow, true, u64::MAX),
                receive(&mut client_in, flow, false, u64::MAX),
            );
            assert_eq!(
                (came_up, came_down),
                ((up, true), (down, true)),
                "flow {flow}"
            );
            for sent in sent {
                assert!(sent.await.unwrap(), "flow {flow}");
            }
        }
        End::Reset { by_client, after } => {
            // One side sends without end; the other takes some bytes, and resets the flow.
            let (mut one, other, out, mut back) = if by_client {
                (client_in, client_out, server_out, server_in)
            } else {
                (server_in, server_out, client_out, client_in)
            };
            let sender = spawn_local(send(out, flow, !by_client, u64::MAX, next()));
            receive(&mut one, flow, !by_client, after).await;
            reset_by(one, other);
            assert_eq!(receive(&mut back, flow, by_client, 1).await, (0, false));
            assert!(!sender.await.unwrap(), "flow {flow}");
        }
    }
}

/// Runs the maximum number of parallel flows, `rounds` times. Returns how many of them their hosts
/// close.
async fn flows(rig: Rc<Rig>, rounds: u64, mut draw: SplitMix64) -> u64 {
    let mut whole = 0;
    for round in 0..rounds {
        let listener = listener().await;
        let to = listener.local_addr().unwrap();
        let mut running = Vec::new();
        for n in 0..u64::from(FLOWS) {
            let flow = round << 8 | n;
            let client = rig.client(to).await;
            let (server, _) = listener.accept().await.unwrap();
            let lens = [draw.below(400_000), draw.below(400_000)];
            let lens = lens.map(|len| if len % 7 == 0 { 0 } else { len });
            let end = match draw.below(4) {
                0 => End::Reset {
                    by_client: draw.below(2) == 0,
                    after: 1 + draw.below(300_000),
                },
                _ => End::Whole,
            };
            whole += u64::from(end == End::Whole);
            let draw = SplitMix64::new(draw.below(u64::MAX));
            running.push(spawn_local(serve_one(
                flow,
                [client, server],
                lens,
                end,
                draw,
            )));
        }
        for flow in running {
            flow.await.unwrap();
        }
    }
    whole
}

fn renew_at_random(compress: bool, what: &str) {
    let mut draw = drawn(what);
    Rig::run(|rig| async move {
        rig.compress.set(compress);
        let rig = Rc::new(rig);
        let (over, renewed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let renewing = {
            let (rig, over, renewed) = (Rc::clone(&rig), Rc::clone(&over), Rc::clone(&renewed));
            let mut draw = SplitMix64::new(draw.below(u64::MAX));
            spawn_local(async move {
                while !over.get() {
                    sleep(Duration::from_millis(20 + draw.below(150))).await;
                    let is_near = draw.below(2) == 0;
                    let end = if is_near { &rig.near } else { &rig.far };
                    Rig::forget(end, is_near);
                    renewed.set(renewed.get() + 1);
                }
            })
        };
        let resumed = |end| Rig::stats(end).tunnel_flows_resumed;
        let mut whole = 0;
        // The draw decides how many renewals meet a flow.
        while resumed(&rig.near) < 4 || resumed(&rig.far) < 4 {
            let draw = SplitMix64::new(draw.below(u64::MAX));
            whole += flows(Rc::clone(&rig), 3, draw).await;
        }
        over.set(true);
        renewing.await.unwrap();
        rig.wait_idle().await;
        let (near, far) = (Rig::stats(&rig.near), Rig::stats(&rig.far));
        println!(
            "{} sessions, flows resumed {} and {} times",
            renewed.get(),
            near.tunnel_flows_resumed,
            far.tunnel_flows_resumed
        );
        for stats in [near, far] {
            assert_eq!(
                (stats.flows_open, stats.ended_closed, stats.ended_error),
                (0, whole, 0),
                "{stats:?}"
            );
        }
        // The reset of a client may be lost with the session. The far end then learns only that the
        // flow is over.
        let reset = far.ended_client_reset + far.ended_server_reset + far.ended_peer_restarted;
        assert_eq!(reset, far.flows_accepted - whole, "{far:?}");
        assert_eq!(near.ended_peer_restarted, 0, "{near:?}");
    });
}

#[test]
fn flows_resume_in_every_session_with_every_byte_once() {
    renew_at_random(false, "plain");
}

#[test]
fn compressed_flows_resume_too_as_long_as_both_ends_live() {
    renew_at_random(true, "compressed");
}

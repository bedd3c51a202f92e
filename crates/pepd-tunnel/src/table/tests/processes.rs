//! Flows that resume in another process.

use super::*;

pub(in crate::table) fn identity(kind: Kind) -> Identity {
    Identity {
        kind,
        site: 1,
        peer: 2,
        born: 3,
        token: 7,
        client: ([192, 0, 2, 1], 5000).into(),
        destination: ([192, 0, 2, 2], 80).into(),
        flags: Flags {
            opened: true,
            ..Flags::default()
        },
        class: 1,
    }
}

/// Ends the process. Returns its only flow, with the kernel's counters of the leg.
pub(in crate::table) fn survivor(table: Table, counters: Counters) -> Survivor {
    let arena = Arc::clone(&table.context.arena);
    let outward = table.entries.values().next().unwrap().outward;
    // Its memory must not be given back; the arena stays.
    std::mem::forget(table);
    let [slot] = arena.occupied()[..] else {
        panic!("one flow");
    };
    let slot = arena.attach(slot);
    let record = slot.record().unwrap();
    let mut both = [None; 2];
    both[usize::from(outward == Direction::Down)] = Some(counters);
    Survivor {
        slot,
        record,
        legs: [None, None],
        counters: both,
    }
}

/// Ends the process. Another one recovers the only flow.
fn crash(table: Table, counters: Counters) -> (Table, Adopted) {
    let context = Arc::clone(&table.context);
    let survivor = survivor(table, counters);
    let mut table = Table::new(&context, SIZES, FLOWS);
    let adopted = table.recover(survivor, None, BTreeMap::new()).unwrap();
    (table, adopted)
}

/// A flow across a crash, compared with its expected bytes.
#[test]
fn a_flow_resumes_in_another_process_with_every_byte_wherever_the_first_one_ended() {
    for seed in 0..60 {
        let mut draw = SplitMix64::new(seed);
        let mut table = table(2);
        let is_far = draw.below(2) == 0;
        let mut flow = if is_far {
            let flow = table.opened(1).unwrap();
            table.introduce(flow, 7);
            flow
        } else {
            let memory = table.context.take_memory().unwrap();
            let flow = table.add(memory, Direction::Up);
            table.bind(flow, 1);
            flow
        };
        let kind = if is_far { Kind::Far } else { Kind::Near };
        table.get(flow).unwrap().publish(&identity(kind), None);
        // Of the leg: taken, sent. Of the stream: acknowledged, received. And the positions at
        // which the stream began.
        let (mut taken, mut given, mut acked, mut come) = (0, 0, 0, 0);
        let (mut out_base, mut in_base, mut prologue) = (0, 0, [0_u64; 2]);
        for _ in 0..40 {
            for _ in 0..draw.below(30) {
                let entry = table.get(flow).unwrap();
                match draw.below(5) {
                    0 => {
                        let space = entry.space(draw.below(100_000));
                        let len = space.len();
                        entry.write(&space, &pattern(taken, len));
                        entry.on_received(len);
                        taken += len;
                    }
                    1 => {
                        acked += draw.below(taken - acked + 1);
                        table.on_acked(1, acked - out_base + prologue[0]);
                    }
                    2 => {
                        let ahead = draw.below(60_000);
                        let room = (entry.incoming.allowed() - come).saturating_sub(ahead);
                        let bytes = pattern(come + ahead, draw.below(20_000).min(room));
                        table.place(1, come + ahead - in_base + prologue[1], &bytes);
                    }
                    3 => {
                        let room = entry.incoming.allowed() - come;
                        let len = draw.below(40_000).min(room);
                        let bytes = pattern(come, len);
                        let at = come - in_base + prologue[1];
                        table.place(1, at, &bytes);
                        come += len;
                        table.on_readable(1, at + len);
                    }
                    _ => {
                        let len = entry.send(|_, _, data| data.len()).unwrap_or(0);
                        let len = draw.below(len + 1);
                        let before = given;
                        let data = entry.send(|slot, direction, data| {
                            let mut bytes = vec![0; len as usize];
                            slot.read(direction, data, &mut bytes);
                            bytes
                        });
                        let data = data.unwrap_or_default();
                        assert!(data == pattern(before, len), "seed {seed}");
                        entry.on_sent(len);
                        table.on_consumed(flow, len);
                        given += len;
                    }
                }
            }
            let entry = table.get(flow).unwrap();
            // A call may have been in progress: the kernel's counters are ahead of the record.
            let space = entry.space(draw.below(3) * 10_000);
            entry.write(&space, &pattern(taken, space.len()));
            taken += space.len();
            let sent = entry.send(|_, _, data| data.len()).unwrap_or(0);
            given += draw.below(sent + 1);
            let counters = Counters {
                read: taken,
                written: given,
                ..Counters::default()
            };
            let (next, adopted) = crash(table, counters);
            (table, flow) = (next, adopted.flow);
            let taken_here = table.taken();
            assert_eq!(taken_here, come - given, "seed {seed}");
            let entry = table.get(flow).unwrap();
            assert!(entry.is_suspended());
            assert_eq!(
                (entry.outgoing.tail(), entry.incoming.head()),
                (taken, given)
            );
            if is_far {
                let resume = resume(acked, come);
                table.rejoin(flow, 1, &resume).unwrap().unwrap();
                (out_base, in_base, prologue) = (acked, come, [16, 0]);
            } else {
                table.reopen(flow, 1).unwrap();
                let answer = Answer {
                    up: acked,
                    up_until: acked + 1000,
                };
                table.place(1, 0, &answer.emit());
                assert_eq!(table.on_readable(1, 16), Some(flow));
                table.get(flow).unwrap().on_answer().unwrap().unwrap();
                (out_base, in_base, prologue) = (acked, come, [0, 16]);
            }
            let mut read = vec![0; (taken - acked) as usize];
            for (n, part) in read.chunks_mut(1000).enumerate() {
                table.read(1, prologue[0] + n as u64 * 1000, part);
            }
            assert!(read == pattern(acked, taken - acked), "seed {seed}");
        }
    }
}

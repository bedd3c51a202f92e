//! Crashes of the process at any step, repeatedly: the next process has every byte, in memory or on
//! disk.

use pep_core::{
    arena::Counters,
    stream_header::{Answer, POSITION_MAX},
};

use super::*;
use crate::{custody::Left, rig::context_over, table::tests::survivor};

impl World {
    /// Starts another process with the state on disk and in memory, without a session.
    fn try_crash(&mut self, change: impl FnOnce(&mut Left)) -> Result<(), RecoverError> {
        self.generation += 1;
        let (spill, slow, mut left) =
            ManualDisk::with_room(&self.disk, self.bounds.disk, self.generation);
        std::mem::replace(&mut self.slow, slow).crash();
        change(&mut left);
        let arena = Arc::clone(&self.table.context.arena);
        let context = context_over(arena, BUDGET, 2 * MIB, INITIAL);
        let (table, custody) = Self::table(&context, self.bounds, spill);
        self.custody = custody;
        let reported = Counters {
            read: self.given,
            ..Counters::default()
        };
        let ended = std::mem::replace(&mut self.table, table);
        let link_down = ended.link_down;
        let survivor = survivor(ended, reported);
        let token = survivor.record.identity.token;
        let on_disk = left.take(token, Direction::Up);
        let adopted = self.table.recover(survivor, None, on_disk);
        left.rest().for_each(|spot| self.custody.forget(spot));
        self.flow = adopted?.flow;
        self.table.set_link_down(link_down);
        self.base = None;
        self.announced = self.entry().advance();
        Ok(())
    }

    fn crash(&mut self) {
        self.try_crash(|_| {}).unwrap();
    }

    /// Starts another session. The peer has everything below `up`.
    fn resume(&mut self, up: u64) {
        self.table.reopen(self.flow, STREAM).unwrap();
        let answer = Answer {
            up,
            up_until: POSITION_MAX,
        };
        self.table.place(STREAM, 0, &answer.emit());
        let flow = self.table.on_readable(STREAM, Answer::LEN as u64);
        assert_eq!(flow, Some(self.flow));
        let terms = self.entry().on_answer().unwrap().unwrap();
        self.base = Some(up);
        (self.sent, self.acked, self.announced) = (up, up, up + terms.written);
    }

    /// Performs some of the pending disk requests, and handles some of the answers.
    fn disk_works_partly(&mut self, jobs: u64, answers: usize) {
        for _ in 0..jobs {
            if !self.slow.work_once() {
                break;
            }
        }
        let answered = if answers > 0 {
            self.slow.work()
        } else {
            Vec::new()
        };
        for answered in answered.into_iter().take(answers) {
            self.on_disk_answered(answered);
        }
    }
}

/// Runs a random test like `whatever_comes_no_byte_is_lost_or_wrong_and_no_budget_exceeded`, with
/// crashes.
fn run(seed: u64) {
    let mut draw = Draw(seed);
    let memory = (1 + draw.below(24)) << 16;
    let disk = draw.below(100) << 16;
    let mut world = World::new(memory, disk);
    let mut crashes = 0;
    for step in 0..300 {
        match draw.below(15) {
            8 if world.base.is_none() => {
                let arrived = world.acked + draw.below(world.sent - world.acked + 1);
                world.resume(arrived);
            }
            9 => {
                let (jobs, answers) = (draw.below(9), draw.below(9));
                if draw.below(2) == 0 {
                    world.give_unseen(draw.below(200_000));
                }
                world.disk_works_partly(jobs, answers as usize);
                world.crash();
                crashes += 1;
            }
            choice => world.step(choice, &mut draw),
        }
        assert!(world.disk.0.bytes() <= disk, "seed {seed}, step {step}");
        assert_eq!(world.entry().loss(), None, "seed {seed}, step {step}");
    }
    world.restore_disk();
    if world.base.is_none() {
        world.resume(world.sent);
    }
    world.deliver();
    world.disk_works();
    let stats = world.stats();
    let held = (stats.custody_disk_bytes, world.disk.0.bytes());
    assert_eq!(held, (0, 0), "seed {seed}, {crashes} crashes");
}

#[test]
fn whenever_the_process_ends_no_byte_is_lost_or_wrong() {
    let schedules: u64 = std::env::var("PEPD_SCHEDULES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(150);
    (0..schedules).for_each(run);
}

#[test]
fn an_upload_on_disk_is_delivered_by_the_next_process_and_the_one_after_that() {
    let mut world = World::new(MIB, 64 * MIB);
    world.table.set_link_down(true);
    world.upload(30 * MIB);
    assert_eq!(world.given, 30 * MIB);
    let before = world.stats().custody_disk_bytes;
    world.crash();
    assert_eq!(world.stats().custody_disk_bytes, before);
    // The flow keeps taking bytes.
    world.upload(40 * MIB);
    assert_eq!(world.given, 40 * MIB);
    world.table.set_link_down(false);
    world.resume(0);
    for _ in 0..30 {
        world.send(MIB);
        world.ack(MIB);
        world.disk_works();
    }
    assert!(
        world.acked > MIB && world.acked < 20 * MIB,
        "{}",
        world.acked
    );
    world.disk_works_partly(3, 2);
    world.crash();
    world.resume(world.acked);
    world.deliver();
    assert_eq!(world.disk.0.bytes(), 0);
}

/// Missing bytes are not replaced.
#[test]
fn without_its_chunks_on_disk_a_flow_does_not_resume() {
    let mut world = World::new(MIB, 64 * MIB);
    world.table.set_link_down(true);
    world.upload(8 * MIB);
    let lost = world.try_crash(|left| *left = Left::default());
    assert!(matches!(lost, Err(RecoverError::Torn(_))), "{lost:?}");

    let mut world = World::new(MIB, 64 * MIB);
    world.table.set_link_down(true);
    world.upload(8 * MIB);
    world.disk.0.read.store(true, Relaxed);
    assert!(world.try_crash(|_| {}).is_err());
    world.disk.0.read.store(false, Relaxed);
    // A flow without bytes on disk resumes.
    let mut world = World::new(MIB, 64 * MIB);
    world.upload(8 * MIB);
    world.disk.0.read.store(true, Relaxed);
    world.crash();
    world.resume(0);
    world.deliver();
}

/// The near end of a flow has ended without a code, while both directions are complete at the far
/// end.
#[test]
fn a_flow_that_has_ended_at_the_peer_ends_here_however_much_waits() {
    for (bytes, ends_well) in [(512 << 10, true), (8 * MIB, false)] {
        let mut world = World::new(MIB, 64 * MIB);
        world.table.set_link_down(true);
        world.upload(bytes);
        world.crash();
        world.table.set_link_down(false);
        let entry = world.entry();
        (entry.finished, entry.source_finished) = (true, true);
        entry.on_forgotten();
        let reset = (!ends_well).then_some(ResetCode::Restarted);
        assert_eq!((entry.closed, entry.reset), (ends_well, reset));
        // There is room to get the leg's end again.
        assert!(!ends_well || !entry.space(1).is_empty());
    }
}

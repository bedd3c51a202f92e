//! Path validation by frames of a session, for the endpoint that knows the addresses.

use super::Session;
use crate::wire::{Frame, PATH_FRAME_LEN, REPORT_LEN_BARE};

/// Challenges and answers to send, and the room for packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validation {
    challenge: Option<u64>,
    /// The peer's challenge, to be answered.
    pub challenged: Option<u64>,
    /// The peer's answer, not taken yet.
    pub answer: Option<u64>,
    /// Longest packet that may be sent.
    room: usize,
}

impl Default for Validation {
    fn default() -> Self {
        Self {
            challenge: None,
            challenged: None,
            answer: None,
            room: usize::MAX,
        }
    }
}

impl Validation {
    /// Returns the bytes that may still be added to a packet of this length.
    pub fn left(&self, packet: usize) -> usize {
        self.room.saturating_sub(packet)
    }
}

impl Session {
    /// Sets the challenge in the next packet, if any. The peer receives where that packet goes if
    /// it [answers](Self::take_path_answer) with the same token.
    pub fn challenge_path(&mut self, token: Option<u64>) {
        self.validation.challenge = token;
    }

    /// Returns the token of the peer's latest answer to a challenge, once.
    pub fn take_path_answer(&mut self) -> Option<u64> {
        self.validation.answer.take()
    }

    /// Sets the longest packet that may be sent, by default without limit. While it is below the
    /// longest of the session, only what is not paced is sent: reports, challenges and answers. So
    /// what is sent, measured and found lost differs from an application's pause in nothing else.
    pub fn set_room(&mut self, room: usize) {
        self.validation.room = room;
    }

    /// Returns the smoothed round trip time.
    pub fn smoothed_rtt(&self) -> std::time::Duration {
        self.delivery.smoothed_rtt()
    }

    /// Returns true if the longest packets may be sent.
    pub(super) fn has_room_for_data(&self) -> bool {
        self.validation.room >= self.config.packet_max
    }

    /// Returns true if a report may be added to a packet of this length.
    pub(super) fn has_room_for_report(&self, packet: usize) -> bool {
        self.validation.left(packet) >= REPORT_LEN_BARE
    }

    /// Writes challenges and answers.
    pub(super) fn write_path_frames(&mut self, begin: usize, out: &mut Vec<u8>) {
        let Validation {
            challenge,
            challenged,
            room,
            ..
        } = &mut self.validation;
        let fits = |out: &Vec<u8>| out.len() - begin + PATH_FRAME_LEN <= *room;
        if fits(out)
            && let Some(token) = challenge.take()
        {
            Frame::PathChallenge { token }.emit(out);
        }
        if fits(out)
            && let Some(token) = challenged.take()
        {
            Frame::PathResponse { token }.emit(out);
        }
    }
}

//! Stream state of the reference session.

/// Positions, and the directions that have ended.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) local: bool,
    pub(super) written: u64,
    pub(super) finished: bool,
    pub(super) sent: u64,
    pub(super) sent_fin: bool,
    pub(super) acked: u64,
    pub(super) acked_fin: bool,
    pub(super) may: u64,
    pub(super) received: u64,
    pub(super) received_fin: bool,
    pub(super) allowed: u64,
    pub(super) reported: u64,
}

impl Stream {
    pub(super) fn new(local: bool, may: u64) -> Self {
        Self {
            local,
            written: 0,
            finished: false,
            sent: 0,
            sent_fin: false,
            acked: 0,
            acked_fin: false,
            may,
            received: 0,
            received_fin: false,
            allowed: may,
            reported: may,
        }
    }
}

//! Flows of a peer that have ended here: how, should the peer not have heard of it when its session was gone.

use std::collections::{BTreeMap, VecDeque};

use tunnel::wire::ResetCode;

/// So many are remembered, the last ones: more than end while one report is on its way.
const MOST: usize = 4096;

/// How flows have ended, by their tokens.
#[derive(Debug, Default)]
pub(super) struct Ended {
    codes: BTreeMap<u128, ResetCode>,
    order: VecDeque<u128>,
}

impl Ended {
    pub(super) fn insert(&mut self, token: u128, code: ResetCode) {
        if self.codes.insert(token, code).is_none() {
            self.order.push_back(token);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.codes.remove(&oldest);
        }
    }

    pub(super) fn get(&self, token: u128) -> Option<ResetCode> {
        self.codes.get(&token).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered() {
        let mut ended = Ended::default();
        for token in 0..MOST as u128 + 10 {
            ended.insert(token, ResetCode::Ended);
            ended.insert(token, ResetCode::Host);
        }
        assert_eq!(ended.get(9), None);
        assert_eq!(ended.get(10), Some(ResetCode::Host));
        assert_eq!((ended.codes.len(), ended.order.len()), (MOST, MOST));
    }
}

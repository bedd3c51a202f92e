//! Counter-based random numbers: every draw is a hash of its purpose.
//!
//! A draw depends on (seed, link, direction, model, counter) and on nothing else. Enabling one
//! model cannot change another's draws, nor can the timing of traffic: the counter is a packet's
//! index or an interval's number. The mixing function is frozen, and `tests` pins its first values,
//! so a seed means the same link in every release.

use splitmix::mix;

use super::Direction;

/// Purpose of a draw. The numbers are frozen, because they are hashed into every draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Model {
    PacketLoss = 1,
    BitErrors = 2,
    BurstState = 3,
    BurstLoss = 4,
    Jitter = 5,
    Duplicate = 6,
    Corrupt = 7,
    CorruptBit = 8,
    Wink = 9,
    OnOff = 10,
}

/// Stream of draws of one model in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    key: u64,
}

impl Stream {
    /// Stream of one direction.
    pub(crate) fn of_direction(seed: u64, link: u64, direction: Direction, model: Model) -> Self {
        Self::new(seed, link, direction as u64 + 1, model)
    }

    /// Stream shared by both directions.
    pub(crate) fn of_link(seed: u64, link: u64, model: Model) -> Self {
        Self::new(seed, link, 0, model)
    }

    fn new(seed: u64, link: u64, place: u64, model: Model) -> Self {
        let key = mix(mix(mix(seed) ^ link) ^ (place << 32 | model as u64));
        Self { key }
    }

    /// Draw for this counter, all 64 bits.
    pub(crate) fn bits(self, counter: u64) -> u64 {
        mix(mix(counter) ^ self.key)
    }

    /// Draw for this counter, uniform in 0..1 with 53 bits.
    pub(crate) fn unit(self, counter: u64) -> f64 {
        (self.bits(counter) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Reports whether an event of this probability happens at this counter; exact for 0 and 1.
    pub(crate) fn happens(self, counter: u64, probability: f64) -> bool {
        probability > 0.0 && self.unit(counter) < probability
    }

    /// Exponentially distributed value with this mean.
    ///
    /// Uses `libm` instead of the platform's logarithm: the same nanosecond on every machine.
    pub(crate) fn exponential(self, counter: u64, mean: f64) -> f64 {
        -libm::log(1.0 - self.unit(counter)) * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_frozen() {
        let stream = Stream::of_direction(1, 0, Direction::AtoB, Model::PacketLoss);
        let draws = [0, 1, 2].map(|k| stream.bits(k));
        assert_eq!(draws, PINNED_LOSS);
        let wink = Stream::of_link(1, 0, Model::Wink);
        assert_eq!([0, 1, 2].map(|k| wink.bits(k)), PINNED_WINK);
    }

    const PINNED_LOSS: [u64; 3] = [
        0x73EC_EFF5_9323_A93E,
        0x7A84_70F1_1510_D5D4,
        0x1AE7_1DC7_5B5E_A4D0,
    ];
    const PINNED_WINK: [u64; 3] = [
        0x4AAC_6092_C720_4126,
        0x718A_58BF_F36C_B311,
        0x3DAB_6509_D3D4_151A,
    ];

    #[test]
    fn streams_differ_in_every_part_of_their_key() {
        let base = Stream::of_direction(1, 2, Direction::AtoB, Model::Jitter);
        let others = [
            Stream::of_direction(3, 2, Direction::AtoB, Model::Jitter),
            Stream::of_direction(1, 3, Direction::AtoB, Model::Jitter),
            Stream::of_direction(1, 2, Direction::BtoA, Model::Jitter),
            Stream::of_direction(1, 2, Direction::AtoB, Model::Corrupt),
            Stream::of_link(1, 2, Model::Jitter),
        ];
        assert!(others.iter().all(|other| *other != base));
    }

    #[test]
    fn exponential_values_have_their_mean() {
        let stream = Stream::of_link(7, 0, Model::OnOff);
        let n = 200_000;
        let mean = (0..n).map(|k| stream.exponential(k, 3.0)).sum::<f64>() / n as f64;
        // Standard error 3 / sqrt(n) = 0.0067.
        assert!((mean - 3.0).abs() < 0.02, "{mean}");
    }
}

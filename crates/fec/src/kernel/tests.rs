use super::*;
use crate::gf256;

/// Pseudo-random numbers; every message has the seed.
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % bound
    }

    /// Parts of one long string, as Miri takes a millisecond to draw a byte.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let from = self.below(BYTES.len());
            let length = (count - bytes.len()).min(BYTES.len() - from);
            bytes.extend_from_slice(&BYTES[from..from + length]);
        }
        bytes
    }
}

/// Pseudo-random bytes.
static BYTES: [u8; 2048] = {
    let (mut bytes, mut draw) = ([0; 2048], 1_u32);
    let mut i = 0;
    while i < bytes.len() {
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes[i] = (draw >> 24) as u8;
        i += 1;
    }
    bytes
};

/// A combination: number of sources and outputs, and their length.
#[derive(Debug)]
struct Case {
    seed: u64,
    sources: usize,
    outputs: usize,
    length: usize,
    accumulate: bool,
}

impl Case {
    fn new(seed: u64, sources: usize, outputs: usize, length: usize) -> Self {
        Self {
            seed,
            sources,
            outputs,
            length,
            accumulate: seed % 2 == 1,
        }
    }

    /// Places every string at the end of an allocation, with any alignment, so that Miri detects
    /// access past the end.
    fn check(&self, kernel: Kernel) {
        let mut draw = Draw::new(self.seed);
        let mut strings = |count| -> Vec<(usize, Vec<u8>)> {
            let mut string = || {
                let start = draw.below(32);
                (start, draw.bytes(start + self.length))
            };
            (0..count).map(|_| string()).collect()
        };
        let sources = strings(self.sources);
        let mut outputs = strings(self.outputs);
        let sources: Vec<&[u8]> = sources
            .iter()
            .map(|(start, bytes)| &bytes[*start..])
            .collect();
        let coefficients = draw.bytes(self.sources * self.outputs);
        let before = outputs.clone();
        let mut places: Vec<&mut [u8]> = outputs
            .iter_mut()
            .map(|(start, bytes)| &mut bytes[*start..])
            .collect();
        if self.accumulate {
            kernel.accumulate(&coefficients, &sources, &mut places);
        } else {
            kernel.combine(&coefficients, &sources, &mut places);
        }
        for (i, (place, (start, before))) in places.iter().zip(&before).enumerate() {
            let row = &coefficients[i * self.sources..][..self.sources];
            for at in (0..self.length)
                .rev()
                .step_by(if cfg!(miri) { 9 } else { 1 })
            {
                let expected = self.expected(row, &sources, at, before[start + at]);
                assert_eq!(
                    place[at], expected,
                    "{kernel}, output {i}, byte {at}, {self:?}"
                );
            }
        }
    }

    /// Byte of an output, by the field's own multiplication.
    fn expected(&self, row: &[u8], sources: &[&[u8]], at: usize, before: u8) -> u8 {
        let mut sum = if self.accumulate { before } else { 0 };
        for j in 0..sources.len() {
            sum ^= gf256::mul(row[j], sources[j][at]);
        }
        sum
    }
}

#[test]
fn every_product_is_that_of_the_field() {
    let bytes: Vec<u8> = (0..=255).collect();
    let step = if cfg!(miri) { 100 } else { 1 };
    for kernel in Kernel::available() {
        for coefficient in (0..=255).step_by(step) {
            let mut output = vec![0; 256];
            kernel.combine(&[coefficient], &[&bytes], &mut [&mut output]);
            let products = bytes.iter().map(|byte| gf256::mul(coefficient, *byte));
            let expected: Vec<u8> = products.collect();
            assert_eq!(output, expected, "{kernel}, coefficient {coefficient}");
        }
    }
}

/// Few cases, as Miri takes a minute for a megabyte: every number of outputs, with whole strips,
/// single vectors, a tail and less than a vector, and more sources than are gathered at once.
#[test]
fn every_way_through_a_kernel_is_right() {
    let cases = [
        (1, 1, 455),
        (2, 2, 260),
        (3, 3, 205),
        (2, 4, 150),
        (3, 5, 130),
        (2, 6, 227),
        (3, 7, 70),
        (1, 9, 5),
        (33, 6, 33),
    ];
    for kernel in Kernel::available() {
        for (seed, (sources, outputs, length)) in (0..).zip(cases) {
            Case::new(seed, sources, outputs, length).check(kernel);
        }
    }
}

/// All lengths up to a few strips of the widest vectors, for all numbers of outputs of a pass and
/// some of two.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn every_length_is_right() {
    for kernel in Kernel::available() {
        for length in 0..=420 {
            let outputs = 1 + length % 14;
            Case::new(length as u64, 3, outputs, length).check(kernel);
            Case::new(length as u64 + 1, 2, 1 + (outputs + 3) % 7, length).check(kernel);
        }
    }
}

/// More sources than fit in one group, for each number of outputs.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn every_number_of_sources_is_right() {
    for kernel in Kernel::available() {
        for outputs in 0..=8 {
            for sources in [0, 1, 2, 31, 32, 33, 63, 64, 65, 192, 193, 400] {
                let seed = (sources + outputs) as u64;
                Case::new(seed, sources, outputs, 333).check(kernel);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn packets_of_any_size_are_right() {
    for kernel in Kernel::available() {
        for seed in 0..60 {
            let mut draw = Draw::new(seed ^ 0x5eed);
            let (sources, outputs) = (1 + draw.below(20), 1 + draw.below(9));
            Case::new(seed, sources, outputs, draw.below(9000)).check(kernel);
        }
    }
}

#[test]
fn a_kernel_is_found_by_its_name_where_the_machine_has_it() {
    for kernel in Kernel::available() {
        assert_eq!(kernel.to_string().parse(), Ok(kernel));
        assert_eq!(Kernel::named(kernel.name()), Ok(kernel));
    }
    for kind in Kind::ALL {
        let available = Kernel::available().any(|kernel| kernel.0 == kind);
        let absent = Err(KernelError::Absent(kind.name()));
        let expected = if available { Ok(Kernel(kind)) } else { absent };
        assert_eq!(Kernel::named(kind.name()), expected);
    }
    let unknown = Kernel::named("mmx").unwrap_err();
    assert_eq!(unknown, KernelError::Unknown("mmx".to_owned()));
    assert!(unknown.to_string().contains("scalar"), "{unknown}");
}

#[test]
fn the_fastest_comes_first_and_scalar_is_always_there() {
    assert_eq!(Kernel::available().next(), Some(Kernel::detect()));
    assert_eq!(Kernel::available().last(), Some(Kernel::SCALAR));
}

#[test]
#[should_panic(expected = "sources of one length")]
fn sources_of_another_length_are_refused() {
    Kernel::detect().combine(&[1, 1], &[&[0; 64], &[0; 63]], &mut [&mut [0; 64]]);
}

#[test]
#[should_panic(expected = "outputs of one length")]
fn outputs_of_another_length_are_refused() {
    Kernel::detect().combine(&[1, 1], &[&[0; 64]], &mut [&mut [0; 64], &mut [0; 65]]);
}

#[test]
#[should_panic(expected = "a coefficient for each")]
fn missing_coefficients_are_refused() {
    Kernel::detect().combine(&[1], &[&[0; 64], &[0; 64]], &mut [&mut [0; 64]]);
}

/// Guard for `scripts/fec-miri` and `scripts/test-on aarch64`: without a kernel its tests are
/// empty.
#[test]
fn the_kernels_that_shall_be_tested_are_there() {
    if let Some(expected) = option_env!("FEC_KERNELS") {
        assert_eq!(Names.to_string(), expected);
    }
}

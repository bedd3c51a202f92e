use super::*;
use crate::gf256;

/// Numbers that look random; the seed is in every message.
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

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// One combination: how many sources and outputs, of what length.
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

    /// Every string begins anywhere in memory that ends where it ends, so that no alignment is
    /// taken for granted and Miri sees what goes past the end.
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
        let expected: Vec<Vec<u8>> = (0..self.outputs)
            .map(|i| self.expected(&coefficients[i * self.sources..], &sources, &outputs[i]))
            .collect();
        let mut places: Vec<&mut [u8]> = outputs
            .iter_mut()
            .map(|(start, bytes)| &mut bytes[*start..])
            .collect();
        if self.accumulate {
            kernel.accumulate(&coefficients, &sources, &mut places);
        } else {
            kernel.combine(&coefficients, &sources, &mut places);
        }
        for (i, (place, expected)) in places.iter().zip(&expected).enumerate() {
            assert_eq!(place, expected, "{kernel}, output {i} of {self:?}");
        }
    }

    /// Byte by byte, by the field's own multiplication.
    fn expected(&self, row: &[u8], sources: &[&[u8]], output: &(usize, Vec<u8>)) -> Vec<u8> {
        let (start, before) = output;
        let sum = |at: usize| {
            let first = if self.accumulate {
                before[start + at]
            } else {
                0
            };
            let products = sources.iter().zip(row);
            products.fold(first, |sum, (source, coefficient)| {
                sum ^ gf256::mul(*coefficient, source[at])
            })
        };
        (0..self.length).map(sum).collect()
    }
}

#[test]
fn every_product_is_that_of_the_field() {
    let bytes: Vec<u8> = (0..=255).collect();
    let step = if cfg!(miri) { 37 } else { 1 };
    for kernel in Kernel::available() {
        for coefficient in (0..=255).step_by(step) {
            let mut output = vec![0; 256];
            kernel.combine(&[coefficient], &[&bytes], &mut [&mut output]);
            let expected: Vec<u8> = bytes
                .iter()
                .map(|byte| gf256::mul(coefficient, *byte))
                .collect();
            assert_eq!(output, expected, "{kernel}, coefficient {coefficient}");
        }
    }
}

/// All lengths up to a few strips of the widest vectors, for all numbers of outputs of a pass and
/// some of two.
#[test]
fn every_length_and_number_of_outputs_is_right() {
    let lengths: Vec<usize> = if cfg!(miri) {
        vec![0, 1, 15, 16, 31, 32, 33, 63, 65, 127, 128, 200, 257]
    } else {
        (0..=420).collect()
    };
    for kernel in Kernel::available() {
        for (seed, length) in (0..).zip(&lengths) {
            let outputs = if cfg!(miri) {
                1 + seed as usize % 9
            } else {
                1 + seed as usize % 14
            };
            Case::new(seed, 3, outputs, *length).check(kernel);
            Case::new(seed + 1, 2, 1 + (outputs + 3) % 7, *length).check(kernel);
        }
    }
}

/// More than fit in one group, for each number of outputs.
#[test]
fn every_number_of_sources_is_right() {
    let (most, length) = if cfg!(miri) { (34, 65) } else { (400, 333) };
    let outputs = if cfg!(miri) { 6..=6 } else { 0..=8 };
    for kernel in Kernel::available() {
        for outputs in outputs.clone() {
            for sources in [0, 1, 2, 31, 32, 33, most] {
                let seed = (sources + outputs) as u64;
                Case::new(seed, sources, outputs, length).check(kernel);
            }
        }
    }
}

#[test]
fn packets_of_any_size_are_right() {
    let cases = if cfg!(miri) { 2 } else { 60 };
    let longest = if cfg!(miri) { 300 } else { 9000 };
    for kernel in Kernel::available() {
        for seed in 0..cases {
            let mut draw = Draw::new(seed ^ 0x5eed);
            let (sources, outputs) = (1 + draw.below(20), 1 + draw.below(9));
            Case::new(seed, sources, outputs, draw.below(longest)).check(kernel);
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

//! Benchmarked jobs: blocks of packets that are encoded, or decoded after losses.

use fec::{
    code::{ErasureCode, ReedSolomon},
    kernel::Kernel,
};
use reed_solomon_erasure::galois_8;

/// A block: k data packets and h repair packets, of one length.
pub struct Block {
    pub k: usize,
    pub h: usize,
    symbols: Vec<Vec<u8>>,
}

/// A job that codes one block per call.
pub type Job<'a> = Box<dyn FnMut() + 'a>;

/// Lost symbols of a block, block by block.
#[derive(Clone, Copy)]
pub enum Losses {
    /// Any h of the k + h, drawn again for each block.
    Random,
    /// Always the same h, spread over the block: on average about as much data as with random
    /// losses.
    Repeating,
}

impl Block {
    pub fn new(k: usize, h: usize, length: usize) -> Self {
        let mut draw = Draw::default();
        let data = (0..k).map(|_| (0..length).map(|_| draw.below(256) as u8).collect());
        let mut symbols: Vec<Vec<u8>> = data.collect();
        symbols.resize(k + h, vec![0; length]);
        let (data, rows) = symbols.split_at_mut(k);
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
        let mut code = ReedSolomon::with_kernel(Kernel::SCALAR);
        code.encode(&data, 0, &mut rows).expect("a block");
        Self { k, h, symbols }
    }

    /// Bytes of data in the block.
    pub fn bytes(&self) -> u64 {
        (self.k * self.length()) as u64
    }

    fn length(&self) -> usize {
        self.symbols[0].len()
    }

    fn data(&self) -> Vec<&[u8]> {
        self.symbols[..self.k].iter().map(Vec::as_slice).collect()
    }

    /// Copies the data, as a reference.
    pub fn memcpy(&self) -> Job<'_> {
        let data = self.data();
        let mut copies = self.symbols[..self.k].to_vec();
        Box::new(move || {
            for (copy, data) in copies.iter_mut().zip(&data) {
                copy.copy_from_slice(data);
            }
            std::hint::black_box(&mut copies);
        })
    }

    pub fn encode(&self, kernel: Kernel) -> Job<'_> {
        let mut code = ReedSolomon::with_kernel(kernel);
        let data = self.data();
        let mut rows = vec![vec![0; self.length()]; self.h];
        Box::new(move || {
            let mut rows: Slices<'_> = rows.iter_mut().collect();
            code.encode(&data, 0, rows.get()).expect("a block");
            std::hint::black_box(rows.get());
        })
    }

    pub fn encode_reference(&self) -> Job<'_> {
        let code = galois_8::ReedSolomon::new(self.k, self.h).expect("a block");
        let data = self.data();
        let mut rows = vec![vec![0; self.length()]; self.h];
        Box::new(move || {
            code.encode_sep(&data, &mut rows).expect("a block");
            std::hint::black_box(&mut rows);
        })
    }

    pub fn decode(&self, kernel: Kernel, losses: Losses) -> Job<'_> {
        let mut code = ReedSolomon::with_kernel(kernel);
        let mut draw = Draw::default();
        let mut order = self.order();
        let mut restored = vec![vec![0; self.length()]; self.h];
        let mut received: Vec<(u8, &[u8])> = Vec::new();
        let mut lost = Vec::new();
        Box::new(move || {
            self.lose(losses, &mut order, &mut draw);
            let (gone, kept) = order.split_at(self.h);
            received.clear();
            received.extend(kept.iter().map(|n| (*n as u8, self.symbols[*n].as_slice())));
            lost.clear();
            lost.extend(gone.iter().filter(|n| **n < self.k).map(|n| *n as u8));
            let mut places: Slices<'_> = restored[..lost.len()].iter_mut().collect();
            code.decode(self.k, &received, &lost, places.get())
                .expect("a block");
            std::hint::black_box(places.get());
        })
    }

    pub fn decode_reference(&self, losses: Losses) -> Job<'_> {
        let code = galois_8::ReedSolomon::new(self.k, self.h).expect("a block");
        let mut draw = Draw::default();
        let mut order = self.order();
        let present = self.symbols.iter().map(|symbol| (symbol.clone(), true));
        let mut symbols: Vec<(Vec<u8>, bool)> = present.collect();
        Box::new(move || {
            self.lose(losses, &mut order, &mut draw);
            for (place, number) in order.iter().enumerate() {
                symbols[*number].1 = place >= self.h;
            }
            code.reconstruct_data(&mut symbols).expect("a block");
            std::hint::black_box(&mut symbols);
        })
    }

    /// All symbols, the lost ones first.
    fn order(&self) -> Vec<usize> {
        let n = self.k + self.h;
        let mut order: Vec<usize> = (0..self.h).map(|i| i * n / self.h).collect();
        let kept: Vec<usize> = (0..n).filter(|number| !order.contains(number)).collect();
        order.extend(kept);
        order
    }

    fn lose(&self, losses: Losses, order: &mut [usize], draw: &mut Draw) {
        if let Losses::Random = losses {
            for i in 0..self.h {
                let other = i + draw.below(order.len() - i);
                order.swap(i, other);
            }
        }
    }
}

/// Maximum number of slices of a block, without heap memory.
struct Slices<'a> {
    slices: [&'a mut [u8]; 8],
    count: usize,
}

impl<'a> FromIterator<&'a mut Vec<u8>> for Slices<'a> {
    fn from_iter<I: IntoIterator<Item = &'a mut Vec<u8>>>(vectors: I) -> Self {
        let mut slices = Self {
            slices: std::array::from_fn(|_| &mut [][..]),
            count: 0,
        };
        for vector in vectors {
            slices.slices[slices.count] = vector;
            slices.count += 1;
        }
        slices
    }
}

impl<'a> Slices<'a> {
    fn get(&mut self) -> &mut [&'a mut [u8]] {
        &mut self.slices[..self.count]
    }
}

/// Pseudo-random numbers, the same in every run.
struct Draw(u64);

impl Default for Draw {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as usize % bound
    }
}

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn any_k_symbols_give_the_data_back(
        k in 1usize..=40,
        h in 1usize..=20,
        length in 0usize..200,
        order in any::<u64>(),
    ) {
        let mut draw = order | 1;
        let mut next = || { draw ^= draw << 13; draw ^= draw >> 7; draw ^= draw << 17; draw };
        let data: Vec<Vec<u8>> =
            (0..k).map(|_| (0..length).map(|_| next() as u8).collect()).collect();
        let mut rows = vec![vec![0; length]; h];
        let mut code = ReedSolomon::new();
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<&mut [u8]> = rows.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources, 0, &mut outputs).unwrap();

        let mut numbers: Vec<u8> = (0..(k + h) as u8).collect();
        for i in (1..numbers.len()).rev() {
            numbers.swap(i, (next() % (i as u64 + 1)) as usize);
        }
        let (kept, gone) = numbers.split_at(k);
        let lost: Vec<u8> = gone.iter().copied().filter(|n| usize::from(*n) < k).collect();
        let all: Vec<&[u8]> =
            sources.iter().copied().chain(rows.iter().map(Vec::as_slice)).collect();
        let received: Vec<(u8, &[u8])> =
            kept.iter().map(|n| (*n, all[usize::from(*n)])).collect();
        let mut restored = vec![vec![0; length]; lost.len()];
        let mut outputs: Vec<&mut [u8]> = restored.iter_mut().map(Vec::as_mut_slice).collect();
        code.decode(k, &received, &lost, &mut outputs).unwrap();
        for (number, restored) in lost.iter().zip(&restored) {
            prop_assert_eq!(restored, &data[usize::from(*number)]);
        }
    }
}

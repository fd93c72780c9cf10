//! Random programs: the same sequence of operations on every rank, each checked against the reference.

use phalanx_collective::{DType, Group};

use super::reference::{OPS, agree, agree_as, expected, input};

/// A sequence of numbers that all ranks draw alike.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    /// Often small, sometimes across the bounds between algorithms.
    fn elements(&mut self) -> usize {
        let limit = [3, 70, 1_000, 40_000][self.below(4)];
        self.below(limit)
    }
}

/// Runs so many operations.
pub fn run(group: &mut Group, seed: u64, operations: usize) {
    let mut dice = Dice::new(seed);
    for _ in 0..operations {
        step(group, &mut dice);
    }
}

fn step(group: &mut Group, dice: &mut Dice) {
    let (me, ranks) = (group.rank(), group.world_size());
    let dtype = DType::ALL[dice.below(DType::ALL.len())];
    let op = loop {
        let op = OPS[dice.below(OPS.len())];
        if op.supports(dtype) {
            break op;
        }
    };
    let (elements, root) = (dice.elements(), dice.below(ranks));
    match dice.below(8) {
        0 | 1 => {
            let mut buffer = input(dtype, me, elements);
            group.all_reduce(&mut buffer, dtype, op).expect("all_reduce");
            agree_as(group, dtype, op, &buffer, &expected(dtype, op, ranks, 0..elements));
        }
        2 => {
            let mut buffer = input(dtype, me, elements);
            group.reduce(&mut buffer, dtype, op, root).expect("reduce");
            if me == root {
                agree_as(group, dtype, op, &buffer, &expected(dtype, op, ranks, 0..elements));
            }
        }
        3 => {
            let mut buffer = input(dtype, me, elements);
            group.broadcast(&mut buffer, dtype, root).expect("broadcast");
            agree("broadcast", &buffer, &input(dtype, root, elements));
        }
        4 => {
            let counts: Vec<usize> = (0..ranks).map(|_| dice.elements()).collect();
            let mut all = vec![0; counts.iter().sum::<usize>() * dtype.size()];
            group.all_gather_v(&input(dtype, me, counts[me]), &mut all, &counts, dtype).expect("all_gather");
            let parts = counts.iter().enumerate().flat_map(|(rank, count)| input(dtype, rank, *count));
            agree("all_gather", &all, &parts.collect::<Vec<u8>>());
        }
        5 => {
            let counts: Vec<usize> = (0..ranks).map(|_| dice.elements()).collect();
            let (start, total) = (counts[..me].iter().sum::<usize>(), counts.iter().sum());
            let mut mine = vec![0; counts[me] * dtype.size()];
            group
                .reduce_scatter_v(&input(dtype, me, total), &mut mine, &counts, dtype, op)
                .expect("reduce_scatter");
            agree_as(group, dtype, op, &mine, &expected(dtype, op, ranks, start..start + counts[me]));
        }
        6 => {
            let counts: Vec<Vec<usize>> =
                (0..ranks).map(|_| (0..ranks).map(|_| dice.elements()).collect()).collect();
            let received: Vec<usize> = counts.iter().map(|row| row[me]).collect();
            let letters = |from: usize, to: usize| input(dtype, from * 3 + to, counts[from][to]);
            let sent: Vec<u8> = (0..ranks).flat_map(|to| letters(me, to)).collect();
            let mut output = vec![0; received.iter().sum::<usize>() * dtype.size()];
            group.all_to_all_v(&sent, &counts[me], &mut output, &received, dtype).expect("all_to_all");
            agree("all_to_all", &output, &(0..ranks).flat_map(|from| letters(from, me)).collect::<Vec<u8>>());
        }
        _ => group.barrier().expect("barrier"),
    }
}

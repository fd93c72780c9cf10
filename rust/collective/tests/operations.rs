//! Every operation against a reference that adds one number after the other, in worlds of 1 to 9 ranks.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use common::{world, world_with};
use phalanx_collective::{DType, Group, GroupOptions, ReduceOp};

/// A world on one host; one of hosts with a rank each; and one of two hosts with different numbers of ranks, which
/// aren't in order.
fn worlds<T: Send>(ranks: usize, run: impl Fn(&mut Group) -> T + Sync) {
    world(ranks, &run);
    let layouts: [fn(usize) -> usize; 2] = [|rank| rank, |rank| rank % 3 / 2];
    for layout in layouts.into_iter().take(ranks - 1) {
        let on_hosts = |options: GroupOptions| GroupOptions {
            pretended_host: Some(layout(options.rank) as u32),
            ..options
        };
        world_with(ranks, on_hosts, &run);
    }
}

const OPS: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::Average,
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
    ReduceOp::PremulSum(0.5),
];

/// Element `at` of the buffer of `rank`: small whole numbers, exact in every type.
fn number(rank: usize, at: usize) -> i32 {
    ((rank * 7 + at * 3) % 5) as i32 - if at.is_multiple_of(4) { 1 } else { 0 }
}

/// Numbers as elements of a type; complex ones have no imaginary part.
fn encode(dtype: DType, numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        match dtype {
            DType::F64 => bytes.extend(number.to_ne_bytes()),
            DType::F32 => bytes.extend((number as f32).to_ne_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(number).to_ne_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(number).to_ne_bytes()),
            DType::I8 => bytes.extend((number as i64 as i8).to_ne_bytes()),
            DType::I16 => bytes.extend((number as i64 as i16).to_ne_bytes()),
            DType::I32 => bytes.extend((number as i64 as i32).to_ne_bytes()),
            DType::I64 => bytes.extend((number as i64).to_ne_bytes()),
            DType::U8 => bytes.push(number as i64 as u8),
            DType::Bool => bytes.push(u8::from(number != 0.0)),
            DType::C64 => bytes.extend([number as f32, 0.0].map(f32::to_ne_bytes).concat()),
            DType::C128 => bytes.extend([number, 0.0].map(f64::to_ne_bytes).concat()),
        }
    }
    bytes
}

/// What a rank puts in. Unsigned types have no negative numbers; among complex ones they would make negative zeros.
fn value(dtype: DType, rank: usize, at: usize) -> f64 {
    let number = number(rank, at);
    let is_positive = matches!(dtype, DType::U8 | DType::C64 | DType::C128);
    f64::from(if is_positive { number.abs() } else { number })
}

fn input(dtype: DType, rank: usize, elements: usize) -> Vec<u8> {
    encode(dtype, (0..elements).map(|at| value(dtype, rank, at)))
}

/// The reduction of element `at` over all ranks, one after the other.
fn reduced(dtype: DType, op: ReduceOp, ranks: usize, at: usize) -> f64 {
    let values = (0..ranks).map(|rank| value(dtype, rank, at));
    let bits = |apply: fn(i64, i64) -> i64| {
        let values = (0..ranks).map(|rank| match dtype {
            DType::Bool => i64::from(value(dtype, rank, at) != 0.0),
            _ => value(dtype, rank, at) as i64,
        });
        values.reduce(apply).unwrap() as f64
    };
    match (dtype, op) {
        (DType::Bool, ReduceOp::Sum | ReduceOp::Max) => bits(|a, b| a | b),
        (DType::Bool, ReduceOp::Product | ReduceOp::Min) => bits(|a, b| a & b),
        (_, ReduceOp::Sum) => values.sum(),
        (_, ReduceOp::Product) => values.product(),
        (_, ReduceOp::Min) => values.fold(f64::INFINITY, f64::min),
        (_, ReduceOp::Max) => values.fold(f64::NEG_INFINITY, f64::max),
        (_, ReduceOp::Average) => match dtype {
            DType::F64 | DType::C128 => values.sum::<f64>() / ranks as f64,
            DType::F32 | DType::C64 | DType::F16 | DType::BF16 => {
                f64::from(values.sum::<f64>() as f32 / ranks as f32)
            }
            _ => (values.sum::<f64>() / ranks as f64).trunc(),
        },
        (_, ReduceOp::BitAnd) => bits(|a, b| a & b),
        (_, ReduceOp::BitOr) => bits(|a, b| a | b),
        (_, ReduceOp::BitXor) => bits(|a, b| a ^ b),
        (_, ReduceOp::PremulSum(factor)) => values.map(|value| value * factor).sum(),
    }
}

fn expected(dtype: DType, op: ReduceOp, ranks: usize, range: std::ops::Range<usize>) -> Vec<u8> {
    encode(dtype, range.map(|at| reduced(dtype, op, ranks, at)))
}

fn every_reduction(mut check: impl FnMut(DType, ReduceOp)) {
    for dtype in DType::ALL {
        for op in OPS.into_iter().filter(|op| op.supports(dtype)) {
            check(dtype, op);
        }
    }
}

fn agree(what: &str, got: &[u8], expected: &[u8]) {
    let start = |bytes: &[u8]| bytes[..bytes.len().min(32)].to_vec();
    assert!(got == expected, "{what}: {:?}... for {:?}...", start(got), start(expected));
}

/// Equal to the bit; but between hosts, averages of 16-bit numbers are rounded twice (HIE-3).
fn agree_as(group: &Group, dtype: DType, op: ReduceOp, got: &[u8], expected: &[u8]) {
    let what = format!("{op:?} of {dtype:?} among {:?}", group.topology().hosts);
    if op != ReduceOp::Average
        || group.topology().hosts.len() == 1
        || ![DType::F16, DType::BF16].contains(&dtype)
    {
        return agree(&what, got, expected);
    }
    let number = |bytes: [u8; 2]| match dtype {
        DType::F16 => half::f16::from_ne_bytes(bytes).to_f64(),
        _ => half::bf16::from_ne_bytes(bytes).to_f64(),
    };
    for (got, expected) in got.as_chunks::<2>().0.iter().zip(expected.as_chunks::<2>().0) {
        let (got, expected) = (number(*got), number(*expected));
        // Terms are at most 5.
        assert!((got - expected).abs() <= 5.0 / 128.0, "{what}: {got} for {expected}");
    }
}

#[test]
fn all_reduce_of_every_type_and_operation_in_worlds_of_one_to_nine() {
    for ranks in 1..=9 {
        worlds(ranks, |group| {
            every_reduction(|dtype, op| {
                for elements in if ranks < 6 { &[0, 1, 37, 517][..] } else { &[67] } {
                    let elements = *elements;
                    let mut buffer = input(dtype, group.rank(), elements);
                    group.all_reduce(&mut buffer, dtype, op).unwrap();
                    agree_as(group, dtype, op, &buffer, &expected(dtype, op, ranks, 0..elements));
                }
            });
        });
    }
}

#[test]
fn long_buffers_are_reduced_slice_by_slice() {
    for ranks in [2, 3, 7] {
        worlds(ranks, |group| {
            for (dtype, elements) in
                [(DType::F32, 65_537), (DType::BF16, 140_001), (DType::C128, 17_000), (DType::I8, 262_145)]
            {
                for op in [ReduceOp::Sum, ReduceOp::Average] {
                    let mut buffer = input(dtype, group.rank(), elements);
                    group.all_reduce(&mut buffer, dtype, op).unwrap();
                    agree_as(group, dtype, op, &buffer, &expected(dtype, op, ranks, 0..elements));
                }
            }
        });
    }
}

#[test]
fn reduce_gives_the_root_the_reduction_and_leaves_the_others_alone() {
    for ranks in [1, 2, 5] {
        worlds(ranks, |group| {
            every_reduction(|dtype, op| {
                let before = input(dtype, group.rank(), 333);
                let mut buffer = before.clone();
                let root = ranks - 1;
                group.reduce(&mut buffer, dtype, op, root).unwrap();
                let after = if group.rank() == root { expected(dtype, op, ranks, 0..333) } else { before };
                agree_as(group, dtype, op, &buffer, &after);
            });
            let mut long = input(DType::F32, group.rank(), 200_003);
            group.reduce(&mut long, DType::F32, ReduceOp::Sum, 0).unwrap();
            if group.rank() == 0 {
                agree("long", &long, &expected(DType::F32, ReduceOp::Sum, ranks, 0..200_003));
            }
        });
    }
}

#[test]
fn broadcast_gives_everyone_the_roots_buffer() {
    for ranks in [1, 2, 3, 9] {
        worlds(ranks, |group| {
            for (root, bytes) in [(0, 0), (ranks / 2, 1), (ranks - 1, 1_000_003)] {
                let mut buffer = input(DType::U8, group.rank(), bytes);
                group.broadcast(&mut buffer, DType::U8, root).unwrap();
                agree("broadcast", &buffer, &input(DType::U8, root, bytes));
            }
        });
    }
}

fn uneven(ranks: usize, unit: usize) -> Vec<usize> {
    (0..ranks).map(|rank| if rank == 1 { 0 } else { unit * (rank + 1) + rank }).collect()
}

#[test]
fn all_gather_gives_everyone_everything_in_order() {
    for ranks in [1, 2, 5] {
        worlds(ranks, |group| {
            let mine = input(DType::F32, group.rank(), 37);
            let mut all = vec![0; 37 * 4 * ranks];
            group.all_gather(&mine, &mut all, DType::F32).unwrap();
            agree(
                "equal",
                &all,
                &(0..ranks).flat_map(|rank| input(DType::F32, rank, 37)).collect::<Vec<_>>(),
            );
            for unit in [3, 70_000 / ranks] {
                let counts = uneven(ranks, unit);
                let mine = input(DType::F64, group.rank(), counts[group.rank()]);
                let mut all = vec![0; counts.iter().sum::<usize>() * 8];
                group.all_gather_v(&mine, &mut all, &counts, DType::F64).unwrap();
                let expected: Vec<u8> =
                    (0..ranks).flat_map(|rank| input(DType::F64, rank, counts[rank])).collect();
                agree("uneven", &all, &expected);
                group.all_gather_in_place(&mut all, &counts, DType::F64).unwrap();
                agree("in place", &all, &expected);
            }
        });
    }
}

#[test]
fn reduce_scatter_gives_each_rank_its_part_of_the_reduction() {
    for ranks in [1, 2, 5] {
        worlds(ranks, |group| {
            every_reduction(|dtype, op| {
                let mut mine = vec![0; 41 * dtype.size()];
                group.reduce_scatter(&input(dtype, group.rank(), 41 * ranks), &mut mine, dtype, op).unwrap();
                let part = 41 * group.rank()..41 * (group.rank() + 1);
                agree_as(group, dtype, op, &mine, &expected(dtype, op, ranks, part));
            });
            let counts = uneven(ranks, 100_000 / ranks);
            let start: usize = counts[..group.rank()].iter().sum();
            let count = counts[group.rank()];
            let mut mine = vec![0; count * 4];
            let all = input(DType::F32, group.rank(), counts.iter().sum());
            group.reduce_scatter_v(&all, &mut mine, &counts, DType::F32, ReduceOp::Sum).unwrap();
            agree("uneven", &mine, &expected(DType::F32, ReduceOp::Sum, ranks, start..start + count));
        });
    }
}

/// How many elements go from one rank to another.
fn letters(from: usize, to: usize, unit: usize) -> usize {
    (from * 3 + to) % 4 * unit
}

fn letter(from: usize, to: usize, unit: usize) -> Vec<u8> {
    input(DType::I16, from * 10 + to, letters(from, to, unit))
}

fn all_to_all(group: &mut Group, unit: usize) {
    let (me, ranks) = (group.rank(), group.world_size());
    let sent: Vec<usize> = (0..ranks).map(|to| letters(me, to, unit)).collect();
    let received: Vec<usize> = (0..ranks).map(|from| letters(from, me, unit)).collect();
    let input: Vec<u8> = (0..ranks).flat_map(|to| letter(me, to, unit)).collect();
    let mut output = vec![0; received.iter().sum::<usize>() * 2];
    group.all_to_all_v(&input, &sent, &mut output, &received, DType::I16).unwrap();
    agree("uneven", &output, &(0..ranks).flat_map(|from| letter(from, me, unit)).collect::<Vec<_>>());
}

#[test]
fn all_to_all_delivers_every_letter() {
    for ranks in [1, 2, 5] {
        worlds(ranks, |group| {
            let me = group.rank();
            let input: Vec<u8> = (0..ranks).flat_map(|to| input(DType::I32, me * 10 + to, 11)).collect();
            let mut output = vec![0; input.len()];
            group.all_to_all(&input, &mut output, DType::I32).unwrap();
            let expected: Vec<u8> =
                (0..ranks).flat_map(|from| self::input(DType::I32, from * 10 + me, 11)).collect();
            agree("equal", &output, &expected);
            all_to_all(group, 3);
            all_to_all(group, 150_000 / ranks);
            all_to_all(group, 0);
        });
    }
}

#[test]
fn gather_and_scatter_move_parts_to_and_from_the_root() {
    for ranks in [1, 2, 5] {
        worlds(ranks, |group| {
            let me = group.rank();
            for (root, unit) in [(0, 5), (ranks - 1, 150_000 / ranks)] {
                let counts = uneven(ranks, unit);
                let all: Vec<u8> =
                    (0..ranks).flat_map(|rank| input(DType::F32, rank, counts[rank])).collect();
                let mut gathered = if me == root { vec![0; all.len()] } else { Vec::new() };
                let mine = input(DType::F32, me, counts[me]);
                group.gather_v(&mine, &mut gathered, &counts, DType::F32, root).unwrap();
                let whole: &[u8] = if me == root { &all } else { &[] };
                agree("gathered", &gathered, whole);
                let mut back = vec![0; mine.len()];
                group.scatter_v(whole, &mut back, &counts, DType::F32, root).unwrap();
                agree("scattered", &back, &mine);
            }
            let mut gathered = if me == 0 { vec![0; 8 * ranks] } else { Vec::new() };
            group.gather(&[me as u8; 8], &mut gathered, DType::F64, 0).unwrap();
            let mut back = [0; 8];
            group.scatter(&gathered, &mut back, DType::F64, 0).unwrap();
            assert_eq!(back, [me as u8; 8]);
            group.barrier().unwrap();
        });
    }
}

#[test]
fn results_are_equal_to_the_bit_on_all_ranks_and_in_every_run() {
    let run = || {
        world(5, |group| {
            let mut state = group.rank() as u32 + 1;
            let mut noise = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 * 1e-5 - 60.0
            };
            let mut long: Vec<f32> = (0..150_001).map(|_| noise()).collect();
            group.all_reduce_of(&mut long, ReduceOp::Sum).unwrap();
            let mut short: Vec<f32> = (0..100).map(|_| noise()).collect();
            group.all_reduce_of(&mut short, ReduceOp::Average).unwrap();
            long.extend(short);
            long.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let first = run();
    assert!(first.iter().all(|rank| *rank == first[0]));
    assert_eq!(run(), first);
}

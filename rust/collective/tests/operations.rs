//! Every operation against a reference that adds one number after the other, in worlds of 1 to 9 ranks.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use common::reference::{OPS, agree, agree_as, expected, input};
use common::{world, world_with};
use phalanx_collective::{DType, Group, GroupOptions, ReduceOp};

/// A world on one host; one of hosts with a rank each; and one of two hosts with different numbers of ranks, which
/// aren't in order. The second is encrypted where the number of ranks is odd, the third where it is even.
fn worlds<T: Send>(ranks: usize, run: impl Fn(&mut Group) -> T + Sync) {
    world(ranks, &run);
    let layouts: [fn(usize) -> usize; 2] = [|rank| rank, |rank| rank % 3 / 2];
    for (number, layout) in layouts.into_iter().take(ranks - 1).enumerate() {
        let on_hosts = |options: GroupOptions| GroupOptions {
            pretended_host: Some(layout(options.rank) as u32),
            encryption: number != ranks % 2,
            ..options
        };
        world_with(ranks, on_hosts, &run);
    }
}

fn every_reduction(mut check: impl FnMut(DType, ReduceOp)) {
    for dtype in DType::ALL {
        for op in OPS.into_iter().filter(|op| op.supports(dtype)) {
            check(dtype, op);
        }
    }
}

#[test]
fn all_ranks_find_the_same_hosts() {
    // GROUP-78
    let on_hosts =
        |options: GroupOptions| GroupOptions { pretended_host: Some(options.rank as u32 % 3 / 2), ..options };
    let found = world_with(7, on_hosts, |group| group.topology().hosts.clone());
    assert!(found.iter().all(|hosts| *hosts == [vec![0, 1, 3, 4, 6], vec![2, 5]]), "{found:?}");
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

#[test]
fn sums_that_cross_as_bfloat16_are_equal_on_all_ranks_and_as_close_as_eight_bits_are() {
    const ELEMENTS: usize = 50_000;
    /// Half a unit in the last place of a bfloat16, of its value.
    const ROUNDING: f64 = 1.0 / 256.0;
    // Both signs and five orders of magnitude, so that some sums cancel.
    let number = |rank: usize, at: usize| {
        let angle = (at * 37 + rank * 101) as f32;
        angle.sin() * 10f32.powi((at % 6) as i32 - 3)
    };
    for (ranks, hosts) in [(2, 2), (3, 3), (4, 2), (7, 3)] {
        for op in [ReduceOp::Sum, ReduceOp::Average] {
            let change = |options: GroupOptions| GroupOptions {
                pretended_host: Some((options.rank % hosts) as u32),
                wire_bfloat16: true,
                ..options
            };
            let sums = world_with(ranks, change, |group| {
                let mut numbers: Vec<f32> = (0..ELEMENTS).map(|at| number(group.rank(), at)).collect();
                group.all_reduce_of(&mut numbers, op).unwrap();
                numbers
            });
            let bits = |sum: &[f32]| sum.iter().map(|sum| sum.to_bits()).collect::<Vec<u32>>();
            assert!(
                sums.iter().all(|sum| bits(sum) == bits(&sums[0])),
                "{ranks} ranks, {hosts} hosts, {op:?}"
            );
            let scale = if op == ReduceOp::Average { ranks as f64 } else { 1.0 };
            for (at, sum) in sums[0].iter().enumerate() {
                let of_host = |host: usize| -> f64 {
                    (0..ranks)
                        .filter(|rank| rank % hosts == host)
                        .map(|rank| f64::from(number(rank, at)))
                        .sum()
                };
                let exact: f64 = (0..hosts).map(of_host).sum();
                // What each host sends is rounded, and their sum once more.
                let sizes = (0..hosts).map(|host| of_host(host).abs()).sum::<f64>();
                let bound = ROUNDING * (sizes + exact.abs()) * 1.01;
                let error = (f64::from(*sum) * scale - exact).abs();
                assert!(error <= bound, "{ranks} ranks, {hosts} hosts, {op:?}: {sum} for {exact}, at {at}");
            }
            // It did cross as such: that nothing was lost would be a coincidence.
            let is_short = |sum: &f32| sum.to_bits().trailing_zeros() >= 16;
            assert!(op != ReduceOp::Sum || sums[0].iter().all(is_short));
        }
    }
}

#[test]
fn parts_of_a_reduction_may_cross_as_bfloat16_too() {
    let counts = [30_000, 10, 20_000, 5];
    let number = |rank: usize, at: usize| ((at * 37 + rank * 101) as f32).sin();
    let change = |options: GroupOptions| GroupOptions {
        pretended_host: Some((options.rank % 2) as u32),
        wire_bfloat16: true,
        ..options
    };
    world_with(4, change, |group| {
        let numbers: Vec<f32> = (0..counts.iter().sum()).map(|at| number(group.rank(), at)).collect();
        let mut part = vec![0.0f32; counts[group.rank()]];
        let (input, output) = (bytemuck::cast_slice(&numbers), bytemuck::cast_slice_mut(&mut part));
        group.reduce_scatter_v(input, output, &counts, DType::F32, ReduceOp::Sum).unwrap();
        let start: usize = counts[..group.rank()].iter().sum();
        for (at, sum) in part.iter().enumerate() {
            let exact: f64 = (0..4).map(|rank| f64::from(number(rank, start + at))).sum();
            // What the other host sends is at most 2, and rounded.
            assert!((f64::from(*sum) - exact).abs() <= 2.0 / 256.0 + 1e-5, "{sum} for {exact}");
        }
    });
}

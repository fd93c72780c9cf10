//! How often a sum of 16-bit floats is rounded, by operation and length: GROUP-47, GROUP-57.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use common::world_with;
use half::{bf16, f16};
use phalanx_collective::{DType, Element, Group, GroupOptions, ReduceOp};

/// Sixteen bits, of which so many are a number's.
trait Half: Element + Copy + PartialEq + std::fmt::Debug {
    /// The least whole number to which 1 can be added without any effect.
    const LARGE: f32;
    fn rounded(number: f32) -> Self;
    fn wide(self) -> f32;
}

impl Half for bf16 {
    const LARGE: f32 = 256.0;
    fn rounded(number: f32) -> bf16 {
        bf16::from_f32(number)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl Half for f16 {
    const LARGE: f32 = 2048.0;
    fn rounded(number: f32) -> f16 {
        f16::from_f32(number)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// What a rank puts in: rank 0's is so large that a 1 is lost on it, and two are not.
fn mine<H: Half>(rank: usize) -> H {
    H::rounded(if rank == 0 { H::LARGE } else { 1.0 })
}

/// Added up and rounded once.
fn once<H: Half>(numbers: &[H]) -> H {
    H::rounded(numbers.iter().map(|number| number.wide()).sum())
}

/// What recursive doubling makes of it: rounded in each step.
fn doubled<H: Half>(numbers: &[H]) -> H {
    let power = 1 << numbers.len().ilog2();
    let extra = numbers.len() - power;
    let (pairs, rest) = numbers.split_at(2 * extra);
    let mut level: Vec<H> = pairs.chunks(2).map(once).chain(rest.iter().copied()).collect();
    while level.len() > 1 {
        level = level.chunks(2).map(once).collect();
    }
    level[0]
}

/// What a binomial tree with this root makes of it: rounded wherever two meet.
fn up_a_tree<H: Half>(numbers: &[H], root: usize) -> H {
    let hosts = numbers.len();
    let mut level: Vec<H> = (0..hosts).map(|position| numbers[(position + root) % hosts]).collect();
    while level.len() > 1 {
        level = level.chunks(2).map(once).collect();
    }
    level[0]
}

/// The sums inside each host.
fn of_hosts<H: Half>(group: &Group) -> Vec<H> {
    let hosts = group.topology().hosts.iter();
    hosts.map(|ranks| once(&ranks.iter().map(|rank| mine(*rank)).collect::<Vec<H>>())).collect()
}

#[track_caller]
fn all_are<H: Half>(what: &str, group: &Group, got: &[H], expected: H) {
    let odd = got.iter().find(|number| **number != expected);
    assert_eq!(odd, None, "GROUP-47: {what}, {expected:?} expected, among {:?}", group.topology().hosts);
}

/// Elements that recursive doubling takes, and so many that it doesn't, whatever the channels.
const SHORT: usize = 1000;
const LONG: usize = 100_000;

fn rounds_as_it_says<H: Half>(group: &mut Group) {
    let (me, ranks) = (group.rank(), group.world_size());
    let sums: Vec<H> = of_hosts(group);
    let mut short = vec![mine::<H>(me); SHORT];
    group.all_reduce_of(&mut short, ReduceOp::Sum).unwrap();
    all_are("a short all_reduce", group, &short, doubled(&sums));
    let mut long = vec![mine::<H>(me); LONG];
    group.all_reduce_of(&mut long, ReduceOp::Sum).unwrap();
    all_are("a long all_reduce", group, &long, once(&sums));
    for elements in [SHORT, LONG] {
        let (input, mut part) = (vec![mine::<H>(me); elements * ranks], vec![mine::<H>(me); elements]);
        let (from, to) = (bytemuck::cast_slice(&input), bytemuck::cast_slice_mut(&mut part));
        group.reduce_scatter(from, to, H::DTYPE, ReduceOp::Sum).unwrap();
        all_are("reduce_scatter", group, &part, once(&sums));
        for root in 0..ranks {
            let mut buffer = vec![mine::<H>(me); elements];
            let bytes = bytemuck::cast_slice_mut(&mut buffer);
            group.reduce(bytes, H::DTYPE, ReduceOp::Sum, root).unwrap();
            if me == root {
                let at = group.topology().locate(root).0;
                all_are("reduce", group, &buffer, up_a_tree(&sums, at));
            }
        }
    }
}

#[test]
fn sums_of_16_bits_are_rounded_once_inside_a_host_and_between_hosts_once_or_once_a_step() {
    // GROUP-47. What is rounded once a step differs from what is rounded once: 256 + 1 + 1 + 1.
    let numbers: Vec<bf16> = (0..4).map(mine).collect();
    assert_ne!(doubled(&numbers), once(&numbers));
    assert_ne!(up_a_tree(&numbers, 0), once(&numbers));
    for (ranks, hosts) in [(5, 1), (2, 2), (3, 3), (4, 4), (6, 6), (6, 3), (7, 3)] {
        let change = |options: GroupOptions| GroupOptions {
            pretended_host: Some((options.rank % hosts) as u32),
            ..options
        };
        world_with(ranks, change, |group| {
            rounds_as_it_says::<bf16>(group);
            rounds_as_it_says::<f16>(group);
        });
    }
}

#[test]
fn float32_that_crosses_as_bfloat16_is_rounded_before_it_crosses_and_then_as_bfloat16_is() {
    // GROUP-47
    const RANKS: usize = 4;
    let change = |options: GroupOptions| GroupOptions {
        pretended_host: Some(options.rank as u32),
        wire_bfloat16: true,
        ..options
    };
    // 257 is rounded to 256 before it crosses, and so are the sums.
    let numbers = [257.0f32, 1.0, 1.0, 1.0];
    let crossed: Vec<bf16> = numbers.iter().map(|number| bf16::from_f32(*number)).collect();
    world_with(RANKS, change, |group| {
        let mut long = vec![numbers[group.rank()]; LONG];
        group.all_reduce_of(&mut long, ReduceOp::Sum).unwrap();
        assert!(long.iter().all(|sum| *sum == once(&crossed).to_f32()), "GROUP-47: {}", long[0]);
        let mut short = vec![numbers[group.rank()]; SHORT];
        group.all_reduce_of(&mut short, ReduceOp::Sum).unwrap();
        assert!(short.iter().all(|sum| *sum == 260.0), "a short one crosses as it is: {}", short[0]);
        assert_eq!(<f32 as Element>::DTYPE, DType::F32);
    });
}

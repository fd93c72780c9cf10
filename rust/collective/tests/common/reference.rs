//! What operations should result in, computed one number after the other.

use std::ops::Range;

use phalanx_collective::{DType, Group, ReduceOp};

pub const OPS: [ReduceOp; 9] = ReduceOp::all(0.5);

/// After so many elements a buffer has the same numbers again.
const PERIOD: usize = 20;

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

/// The elements of a range, of which one period is computed: a test build takes long for a number.
fn buffer(dtype: DType, range: Range<usize>, element: impl Fn(usize) -> f64) -> Vec<u8> {
    let period = encode(dtype, (range.start..range.start + PERIOD).map(element));
    let mut bytes = period.repeat(range.len().div_ceil(PERIOD));
    bytes.truncate(range.len() * period.len() / PERIOD);
    bytes
}

pub fn input(dtype: DType, rank: usize, elements: usize) -> Vec<u8> {
    buffer(dtype, 0..elements, |at| value(dtype, rank, at))
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

pub fn expected(dtype: DType, op: ReduceOp, ranks: usize, range: Range<usize>) -> Vec<u8> {
    buffer(dtype, range, |at| reduced(dtype, op, ranks, at))
}

pub fn agree(what: &str, got: &[u8], expected: &[u8]) {
    let start = |bytes: &[u8]| bytes[..bytes.len().min(32)].to_vec();
    assert!(got == expected, "{what}: {:?}... for {:?}...", start(got), start(expected));
}

/// Equal to the bit; but between hosts, averages of 16-bit numbers are rounded more than once (GROUP-47).
pub fn agree_as(group: &Group, dtype: DType, op: ReduceOp, got: &[u8], expected: &[u8]) {
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

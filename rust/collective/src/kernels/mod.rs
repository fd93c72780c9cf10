//! Reduction kernels: several buffers become one.
//!
//! It owns no memory and knows no rank. It has plain loops over arrays of bytes, which the compiler vectorises without
//! asking for any alignment.
//!
//! - GROUP-56 (fixed-order): sources are combined in their order, whichever of them is the destination. So equal
//!   sources give equal bits everywhere.
//! - GROUP-57 (rounded-once): float16 and bfloat16 are accumulated in float32 and rounded once.

mod combine;
mod convert;
mod dispatch;
mod float16;
mod float16_sums;
mod ops;
mod simd_lane;

use half::f16;

use crate::dtype::{DType, ReduceOp};
use combine::{combine, combine_bfloat16};
pub(crate) use convert::{divide, narrow, scale, widen};
use ops::{And, Average, Complex, Max, Min, Op, Or, Product, Sum, Xor};
use simd_lane::SimdLane;

/// `fn(destination, its index among the sources, the other sources, ranks to average over)`
type Kernel = fn(&mut [u8], usize, &[&[u8]], u32);

/// A reduction for one type of element.
#[derive(Clone, Copy)]
pub(crate) struct Combine {
    kernel: Kernel,
    ranks: u32,
    is_costly: bool,
}

impl Combine {
    /// The reduction of `op` over `dtype`; averages divide by `ranks`. A factor is not applied here: see [`scale`].
    /// `None` if the type has no such reduction.
    pub(crate) fn new(dtype: DType, op: ReduceOp, ranks: usize) -> Option<Combine> {
        let kernel = op.supports(dtype).then(|| kernel(dtype, op))?;
        let is_costly = match dtype {
            // The ranks of a host have the same processors, so they all choose alike.
            DType::BF16 => !float16_sums::has_bfloat16(),
            DType::F16 => !float16_sums::has_float16(),
            _ => false,
        };
        Some(Combine { kernel, ranks: u32::try_from(ranks).ok()?, is_costly })
    }

    /// Whether computing takes longer than moving the bytes through the cache.
    pub(crate) fn is_costly(&self) -> bool {
        self.is_costly
    }

    /// Combines `destination`, as source number `own`, with the `others` around it, into `destination`.
    /// All are equally long, a whole number of elements.
    pub(crate) fn apply(&self, destination: &mut [u8], own: usize, others: &[&[u8]]) {
        assert!(own <= others.len(), "source {own} of {}", others.len() + 1);
        assert!(others.iter().all(|other| other.len() == destination.len()), "sources of different lengths");
        if !others.is_empty() {
            (self.kernel)(destination, own, others, self.ranks);
        }
    }
}

fn kernel(dtype: DType, op: ReduceOp) -> Kernel {
    match dtype {
        DType::F64 => arithmetic::<f64, 8>(op),
        DType::F32 => arithmetic::<f32, 4>(op),
        DType::F16 => match op {
            ReduceOp::Sum | ReduceOp::PremulSum(_) => sum_float16,
            ReduceOp::Average => average_float16,
            op => arithmetic::<f16, 2>(op),
        },
        DType::BF16 => match op {
            ReduceOp::Product => combine_bfloat16::<Product>,
            ReduceOp::Min => combine_bfloat16::<Min>,
            ReduceOp::Max => combine_bfloat16::<Max>,
            ReduceOp::Average => average_bfloat16,
            _ => sum_bfloat16,
        },
        DType::I8 => bits::<i8, 1>(op).unwrap_or_else(|| arithmetic::<i8, 1>(op)),
        DType::I16 => bits::<i16, 2>(op).unwrap_or_else(|| arithmetic::<i16, 2>(op)),
        DType::I32 => bits::<i32, 4>(op).unwrap_or_else(|| arithmetic::<i32, 4>(op)),
        DType::I64 => bits::<i64, 8>(op).unwrap_or_else(|| arithmetic::<i64, 8>(op)),
        DType::U8 => bits::<u8, 1>(op).unwrap_or_else(|| arithmetic::<u8, 1>(op)),
        DType::Bool => match op {
            ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => combine::<bool, And, 1>,
            ReduceOp::BitXor => combine::<bool, Xor, 1>,
            _ => combine::<bool, Or, 1>,
        },
        // But for products, a complex number is two real ones.
        DType::C64 if op == ReduceOp::Product => combine::<Complex<f32>, Product, 8>,
        DType::C128 if op == ReduceOp::Product => combine::<Complex<f64>, Product, 16>,
        DType::C64 => arithmetic::<f32, 4>(op),
        DType::C128 => arithmetic::<f64, 8>(op),
    }
}

macro_rules! float16_sums {
    ($($name:ident, $divisor:expr, $fast:path, $portable:expr);*) => {$(
        /// By the processor's own instructions as far as they go.
        fn $name(destination: &mut [u8], own: usize, others: &[&[u8]], ranks: u32) {
            let divisor: fn(u32) -> f32 = $divisor;
            let done = $fast(destination, own, others, divisor(ranks));
            if done < destination.len() {
                let others: Vec<&[u8]> = others.iter().map(|other| &other[done..]).collect();
                $portable(&mut destination[done..], own, &others, ranks);
            }
        }
    )*};
}
float16_sums! {
    sum_bfloat16, |_| 1.0, float16_sums::sum_bfloat16, combine_bfloat16::<Sum>;
    average_bfloat16, |ranks| ranks as f32, float16_sums::sum_bfloat16, combine_bfloat16::<Average>;
    sum_float16, |_| 1.0, float16_sums::sum_float16, combine::<f16, Sum, 2>;
    average_float16, |ranks| ranks as f32, float16_sums::sum_float16, combine::<f16, Average, 2>
}

fn arithmetic<L: SimdLane<N>, const N: usize>(op: ReduceOp) -> Kernel
where
    Sum: Op<L::Acc>,
    Product: Op<L::Acc>,
    Min: Op<L::Acc>,
    Max: Op<L::Acc>,
    Average: Op<L::Acc>,
{
    match op {
        ReduceOp::Product => combine::<L, Product, N>,
        ReduceOp::Min => combine::<L, Min, N>,
        ReduceOp::Max => combine::<L, Max, N>,
        ReduceOp::Average => combine::<L, Average, N>,
        _ => combine::<L, Sum, N>,
    }
}

fn bits<L: SimdLane<N>, const N: usize>(op: ReduceOp) -> Option<Kernel>
where
    And: Op<L::Acc>,
    Or: Op<L::Acc>,
    Xor: Op<L::Acc>,
{
    match op {
        ReduceOp::BitAnd => Some(combine::<L, And, N>),
        ReduceOp::BitOr => Some(combine::<L, Or, N>),
        ReduceOp::BitXor => Some(combine::<L, Xor, N>),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn reduced<T: crate::Element>(op: ReduceOp, sources: &[&[T]], own: usize) -> Vec<T> {
        let combine = Combine::new(T::DTYPE, op, sources.len()).unwrap();
        let mut destination = sources[own].to_vec();
        let others: Vec<&[u8]> = (0..sources.len())
            .filter(|source| *source != own)
            .map(|source| bytemuck::cast_slice(sources[source]))
            .collect();
        combine.apply(bytemuck::cast_slice_mut(&mut destination), own, &others);
        destination
    }

    #[test]
    fn reductions_are_what_their_names_say() {
        let (a, b, c) = ([6i32, -3, i32::MAX], [2, 9, 1], [7, 5, 1]);
        let all = [&a[..], &b, &c];
        assert_eq!(reduced(ReduceOp::Sum, &all, 0), [15, 11, i32::MIN + 1]);
        assert_eq!(reduced(ReduceOp::Product, &all, 1)[..2], [84, -135]);
        assert_eq!(reduced(ReduceOp::Min, &all, 2), [2, -3, 1]);
        assert_eq!(reduced(ReduceOp::Max, &all, 0), [7, 9, i32::MAX]);
        assert_eq!(reduced(ReduceOp::Average, &all, 0)[..2], [5, 3]);
        assert_eq!(reduced(ReduceOp::BitAnd, &[&[12u8], &[10]], 0), [8]);
        assert_eq!(reduced(ReduceOp::BitOr, &[&[12u8], &[10]], 1), [14]);
        assert_eq!(reduced(ReduceOp::BitXor, &[&[12u8], &[10]], 1), [6]);
        let nan = reduced(ReduceOp::Max, &[&[1f32, f32::NAN, 2.0], &[f32::NAN, 1.0, 3.0]], 0);
        assert!(nan[0].is_nan() && nan[1].is_nan() && nan[2] == 3.0);
    }

    #[test]
    fn bools_and_complex_numbers_have_their_own_sums() {
        let combine = |dtype, op| Combine::new(dtype, op, 2).unwrap();
        let mut any = [0u8, 0, 2, 1];
        combine(DType::Bool, ReduceOp::Sum).apply(&mut any, 0, &[&[0, 7, 0, 1]]);
        assert_eq!(any, [0, 1, 1, 1]);
        let mut all = [0u8, 3, 1];
        combine(DType::Bool, ReduceOp::Product).apply(&mut all, 1, &[&[1, 1, 0]]);
        assert_eq!(all, [0, 1, 0]);
        let mut product = [1f32, 2.0].map(f32::to_ne_bytes).concat();
        combine(DType::C64, ReduceOp::Product).apply(
            &mut product,
            0,
            &[&[3f32, -1.0].map(f32::to_ne_bytes).concat()],
        );
        assert_eq!(product, [5f32, 5.0].map(f32::to_ne_bytes).concat());
    }

    #[test]
    fn equal_sources_give_equal_bits_wherever_the_destination_is() {
        // GROUP-56. 0.1 + 0.2 + 0.3 depends on the order, as min(-0, +0) does.
        let sources: Vec<Vec<f32>> =
            (0..5).map(|rank| (0..1_100).map(|i| (i as f32 + 0.1) * 0.7f32.powi(rank)).collect()).collect();
        for count in 2..=5 {
            let views: Vec<&[f32]> = sources[..count].iter().map(Vec::as_slice).collect();
            let first = reduced(ReduceOp::Sum, &views, 0);
            for own in 1..count {
                let same = reduced(ReduceOp::Sum, &views, own);
                assert!(same.iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
        let zeros = [&[0.0f32][..], &[-0.0]];
        let bits = |own| reduced(ReduceOp::Min, &zeros, own)[0].to_bits();
        assert_eq!(bits(0), bits(1));
    }

    #[test]
    fn float16_sums_are_rounded_once() {
        // GROUP-57: 256 + 1 is 256 in bfloat16, so summing 256 ones one by one in it would stay at 256.
        let one = [bf16::from_f32(1.0)];
        let large = [bf16::from_f32(256.0)];
        let views: Vec<&[bf16]> = std::iter::once(&large[..]).chain((0..256).map(|_| &one[..])).collect();
        assert_eq!(reduced(ReduceOp::Sum, &views, 3)[0].to_f32(), 512.0);
        // The sum of the halves is beyond their range, their average isn't.
        let huge = [f16::from_f32(60_000.0)];
        assert_eq!(reduced(ReduceOp::Average, &[&huge, &huge], 1), huge);
        assert_eq!(reduced(ReduceOp::Average, &[&huge, &huge, &huge], 1), huge);
    }

    #[test]
    fn sums_are_the_same_to_the_bit_whatever_the_processor_can() {
        // GROUP-55. All exponents and both signs; the second source cancels some of the first, to subnormal numbers.
        fn check(
            dtype: DType,
            op: ReduceOp,
            ranks: usize,
            own: usize,
            portable: Kernel,
            is_nan: fn(u16) -> bool,
        ) {
            let step = if cfg!(miri) { 1001 } else { 1 };
            let source = |rank: u16| -> Vec<u8> {
                let bits = (0..=u16::MAX).step_by(step).map(|bits| match rank % 3 {
                    0 => bits,
                    1 => bits.wrapping_mul(0x9e37).wrapping_add(rank),
                    _ => (bits ^ 0x8000).wrapping_add(rank / 3),
                });
                bits.flat_map(u16::to_ne_bytes).collect()
            };
            let sources: Vec<Vec<u8>> = (0..ranks as u16).map(|rank| source(2 * rank)).collect();
            let others: Vec<&[u8]> =
                (0..ranks).filter(|rank| *rank != own).map(|rank| &sources[rank][..]).collect();
            let (mut fast, mut slow) = (sources[own].clone(), sources[own].clone());
            Combine::new(dtype, op, ranks).unwrap().apply(&mut fast, own, &others);
            portable(&mut slow, own, &others, ranks as u32);
            for (at, (fast, slow)) in fast.as_chunks::<2>().0.iter().zip(slow.as_chunks::<2>().0).enumerate()
            {
                let (fast, slow) = (u16::from_ne_bytes(*fast), u16::from_ne_bytes(*slow));
                let both_nan = is_nan(fast) && is_nan(slow);
                assert!(
                    fast == slow || both_nan,
                    "{dtype:?} {op:?} of {ranks}, {at:#x}: {fast:#x} for {slow:#x}"
                );
            }
        }
        for (ranks, own) in [(2, 0), (2, 1), (4, 2)] {
            let is_nan: fn(u16) -> bool = |bits| bf16::from_bits(bits).is_nan();
            check(DType::BF16, ReduceOp::Sum, ranks, own, combine_bfloat16::<Sum>, is_nan);
            check(DType::BF16, ReduceOp::Average, ranks, own, combine_bfloat16::<Average>, is_nan);
            let is_nan: fn(u16) -> bool = |bits| f16::from_bits(bits).is_nan();
            check(DType::F16, ReduceOp::Sum, ranks, own, combine::<f16, Sum, 2>, is_nan);
            check(DType::F16, ReduceOp::Average, ranks, own, combine::<f16, Average, 2>, is_nan);
        }
    }

    #[test]
    fn an_odd_number_of_bfloat16_is_combined_to_the_last() {
        for count in [1, 2, 7] {
            let numbers: Vec<bf16> = (0..count).map(|at| bf16::from_f32(at as f32 + 0.5)).collect();
            let twice: Vec<bf16> = (0..count).map(|at| bf16::from_f32(at as f32 * 2.0 + 1.0)).collect();
            assert_eq!(reduced(ReduceOp::Sum, &[&numbers, &numbers], 1), twice);
        }
    }

    #[test]
    fn unaligned_bytes_and_factors_work() {
        let mut bytes = [0u8; 9];
        bytes[1..].copy_from_slice(&[1.5f32, -2.0].map(f32::to_ne_bytes).concat());
        scale(&mut bytes[1..], DType::F32, 2.0);
        assert_eq!(bytes[1..], [3.0f32, -4.0].map(f32::to_ne_bytes).concat());
        let mut half = [0; 4];
        narrow(DType::BF16, &bytes[1..], &mut half);
        let mut back = [0; 8];
        widen(DType::BF16, &half, &mut back);
        assert_eq!(back, bytes[1..]);
    }
}

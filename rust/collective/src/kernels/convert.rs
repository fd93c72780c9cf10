//! Kernels on one buffer: factors, the end of an average, and 16-bit floating-point types.

use half::{bf16, f16};

use super::dispatch::{Loop, run_widest};
use super::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::ops::{Average, Op};
use super::simd_lane::SimdLane;
use crate::dtype::DType;

/// Multiplies every element by `factor`: floating point and complex; other types stay as they are.
pub(crate) fn scale(buffer: &mut [u8], dtype: DType, factor: f64) {
    fn each<L: SimdLane<N>, const N: usize>(buffer: &mut [u8], by: impl Fn(L::Acc) -> L::Acc) {
        buffer.as_chunks_mut::<N>().0.iter_mut().for_each(|bytes| *bytes = L::store(by(L::load(*bytes))));
    }
    let single = factor as f32;
    match dtype {
        DType::F64 | DType::C128 => each::<f64, 8>(buffer, |value| value * factor),
        DType::F32 | DType::C64 => each::<f32, 4>(buffer, |value| value * single),
        DType::F16 => each::<f16, 2>(buffer, |value| value * single),
        DType::BF16 => each::<bf16, 2>(buffer, |value| value * single),
        _ => {}
    }
}

/// Divides every element by the number of ranks: the end of an average whose sum was made elsewhere.
pub(crate) fn divide(buffer: &mut [u8], dtype: DType, ranks: usize) {
    fn each<L: SimdLane<N>, const N: usize>(buffer: &mut [u8], ranks: u32)
    where
        Average: Op<L::Acc>,
    {
        let elements = buffer.as_chunks_mut::<N>().0.iter_mut();
        elements.for_each(|bytes| *bytes = L::store(Average::finish(L::load(*bytes), ranks)));
    }
    let ranks = ranks as u32;
    match dtype {
        DType::F64 | DType::C128 => each::<f64, 8>(buffer, ranks),
        DType::F32 | DType::C64 => each::<f32, 4>(buffer, ranks),
        DType::F16 => each::<f16, 2>(buffer, ranks),
        DType::BF16 => each::<bf16, 2>(buffer, ranks),
        DType::I8 => each::<i8, 1>(buffer, ranks),
        DType::I16 => each::<i16, 2>(buffer, ranks),
        DType::I32 => each::<i32, 4>(buffer, ranks),
        DType::I64 => each::<i64, 8>(buffer, ranks),
        DType::U8 => each::<u8, 1>(buffer, ranks),
        DType::Bool => {}
    }
}

/// Rounds singles to a 16-bit floating-point type. `to` is half as long as `from`.
pub(crate) fn narrow(dtype: DType, from: &[u8], to: &mut [u8]) {
    if dtype == DType::F16 {
        run_widest(Narrow(from, to, f32_to_f16));
    } else {
        run_widest(Narrow(from, to, f32_to_bf16));
    }
}

/// Singles from a 16-bit floating-point type. `to` is twice as long as `from`.
pub(crate) fn widen(dtype: DType, from: &[u8], to: &mut [u8]) {
    if dtype == DType::F16 {
        run_widest(Widen(from, to, f16_to_f32));
    } else {
        run_widest(Widen(from, to, bf16_to_f32));
    }
}

struct Narrow<'a, F>(&'a [u8], &'a mut [u8], F);

impl<F: Fn(f32) -> u16> Loop for Narrow<'_, F> {
    #[inline(always)]
    fn run(self) {
        let pairs = self.0.as_chunks::<4>().0.iter().zip(self.1.as_chunks_mut::<2>().0);
        pairs.for_each(|(from, to)| *to = self.2(f32::from_ne_bytes(*from)).to_ne_bytes());
    }
}

struct Widen<'a, F>(&'a [u8], &'a mut [u8], F);

impl<F: Fn(u16) -> f32> Loop for Widen<'_, F> {
    #[inline(always)]
    fn run(self) {
        let pairs = self.0.as_chunks::<2>().0.iter().zip(self.1.as_chunks_mut::<4>().0);
        pairs.for_each(|(from, to)| *to = self.2(u16::from_ne_bytes(*from)).to_ne_bytes());
    }
}

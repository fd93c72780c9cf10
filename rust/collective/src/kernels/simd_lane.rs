//! How bytes become what is computed with, and back.

use half::{bf16, f16};

use super::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::ops::{Complex, Two};

/// What one lane of a vector holds: an element, or several, of N bytes.
pub(super) trait SimdLane<const N: usize> {
    type Acc: Copy;
    /// Whether two buffers are combined faster in steps (load, combine, store) than in one loop. The compiler doesn't
    /// vectorise long loops.
    const IS_LONG: bool = false;
    fn load(bytes: [u8; N]) -> Self::Acc;
    fn store(value: Self::Acc) -> [u8; N];
}

macro_rules! plain_simd_lanes {
    ($($rust:ty, $bytes:literal);*) => {$(
        impl SimdLane<$bytes> for $rust {
            type Acc = $rust;
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> $rust { <$rust>::from_ne_bytes(bytes) }
            #[inline(always)]
            fn store(value: $rust) -> [u8; $bytes] { value.to_ne_bytes() }
        }
    )*};
}
plain_simd_lanes!(f64, 8; f32, 4; i8, 1; i16, 2; i32, 4; i64, 8; u8, 1);

macro_rules! float16_simd_lanes {
    ($($rust:ty, $widen:ident, $round:ident);*) => {$(
        impl SimdLane<2> for $rust {
            type Acc = f32;
            const IS_LONG: bool = true;
            #[inline(always)]
            fn load(bytes: [u8; 2]) -> f32 { $widen(u16::from_ne_bytes(bytes)) }
            #[inline(always)]
            fn store(value: f32) -> [u8; 2] { $round(value).to_ne_bytes() }
        }
    )*};
}
float16_simd_lanes!(f16, f16_to_f32, f32_to_f16; bf16, bf16_to_f32, f32_to_bf16);

/// Two bfloat16 side by side, taken apart by shifts of 32 bits: no bytes have to change places within a vector.
pub(super) struct BFloat16Pair;

impl SimdLane<4> for BFloat16Pair {
    type Acc = Two;
    #[inline(always)]
    fn load(bytes: [u8; 4]) -> Two {
        let bits = u32::from_ne_bytes(bytes);
        Two(f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000))
    }
    #[inline(always)]
    fn store(value: Two) -> [u8; 4] {
        (u32::from(f32_to_bf16(value.0)) | u32::from(f32_to_bf16(value.1)) << 16).to_ne_bytes()
    }
}

impl SimdLane<1> for bool {
    type Acc = u8;
    #[inline(always)]
    fn load([byte]: [u8; 1]) -> u8 {
        u8::from(byte != 0)
    }
    #[inline(always)]
    fn store(value: u8) -> [u8; 1] {
        [value]
    }
}

macro_rules! complex_simd_lanes {
    ($($part:ty, $half:literal, $bytes:literal);*) => {$(
        impl SimdLane<$bytes> for Complex<$part> {
            type Acc = Self;
            #[inline(always)]
            fn load(bytes: [u8; $bytes]) -> Self {
                let (parts, _) = bytes.as_chunks::<$half>();
                Complex(<$part>::from_ne_bytes(parts[0]), <$part>::from_ne_bytes(parts[1]))
            }
            #[inline(always)]
            fn store(value: Self) -> [u8; $bytes] {
                let mut bytes = [0; $bytes];
                bytes[..$half].copy_from_slice(&value.0.to_ne_bytes());
                bytes[$half..].copy_from_slice(&value.1.to_ne_bytes());
                bytes
            }
        }
    )*};
}
complex_simd_lanes!(f32, 4, 8; f64, 8, 16);

//! Conversions between 16-bit and 32-bit floating point, written without branches so that the compiler vectorises
//! loops over them. (The crate `half` asks the processor for its features at every element.)
//!
//! Rounding is to nearest, ties to even; a NaN stays a NaN; subnormal numbers are kept.

/// bfloat16 is the upper half of a single.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to bfloat16.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // The lower half of a NaN may hold all of its payload: the quiet bit keeps it a NaN.
    let nan = (bits >> 16) | 0x40;
    (if (bits & 0x7fff_ffff) > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// A half as a single, exactly.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let body = u32::from(bits & 0x7fff) << 13;
    // 2^112 moves the exponent's bias from 15 to 127, and makes subnormal numbers normal.
    let scaled = (f32::from_bits(body) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if body >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | sign)
}

/// Rounds to a half (after F. Giesen, "float->half variants").
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    const TOO_LARGE: u32 = (127 + 16) << 23;
    const SMALLEST_NORMAL: u32 = 113 << 23;
    /// Adding it leaves a subnormal's bits at the bottom of the sum, rounded by the addition itself.
    const SUBNORMAL_MAGIC: u32 = 126 << 23;
    let bits = value.to_bits();
    let sign = bits & 0x8000_0000;
    let body = bits ^ sign;
    let special = if body > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let subnormal =
        (f32::from_bits(body) + f32::from_bits(SUBNORMAL_MAGIC)).to_bits().wrapping_sub(SUBNORMAL_MAGIC);
    let odd = (body >> 13) & 1;
    let normal = body.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    let finite = if body < SMALLEST_NORMAL { subnormal } else { normal };
    ((if body >= TOO_LARGE { special } else { finite }) | (sign >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_sixteen_bit_value_widens_as_in_half_and_comes_back() {
        let step = if cfg!(miri) { 97 } else { 1 };
        for bits in (0..=u16::MAX).step_by(step) {
            let (wide, reference) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(
                wide.to_bits() == reference.to_bits() || (wide.is_nan() && reference.is_nan()),
                "{bits:#x}"
            );
            assert!(f32_to_f16(wide) == bits || wide.is_nan(), "{bits:#x}");
            assert_eq!(f32_to_f16(wide) & 0x7fff > 0x7c00, wide.is_nan());
            let (wide, reference) = (bf16_to_f32(bits), bf16::from_bits(bits).to_f32());
            assert!(
                wide.to_bits() == reference.to_bits() || (wide.is_nan() && reference.is_nan()),
                "{bits:#x}"
            );
            assert!(f32_to_bf16(wide) == bits || wide.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn singles_round_as_in_half() {
        let step = if cfg!(miri) { 9_999_991 } else { 1_009 };
        for bits in (0..=u32::MAX).step_by(step) {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert!(
                    f16::from_bits(f32_to_f16(value)).is_nan()
                        && bf16::from_bits(f32_to_bf16(value)).is_nan()
                );
            } else {
                assert_eq!(f32_to_f16(value), f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(f32_to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }
}

//! Sums of 16-bit floats by the instructions that some processors have for them: AVX-512 BF16, and F16C.
//!
//! - GROUP-55 (portable-bits): results are those of the portable loops, to the bit, subnormal numbers included (a NaN
//!   stays a NaN). So ranks may have different processors.
//!
//! Each function returns how many bytes it has done, a whole number of vectors. The portable loop does the rest.

/// Whether there are such instructions for bfloat16.
pub(super) fn has_bfloat16() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return is_x86_feature_detected!("avx512bf16")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Whether there are for float16.
pub(super) fn has_float16() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// `divisor` is 1 or, for an average, the number of ranks.
#[cfg_attr(
    not(all(target_arch = "x86_64", not(miri))),
    expect(unused_variables, reason = "for one architecture")
)]
pub(super) fn sum_bfloat16(destination: &mut [u8], own: usize, others: &[&[u8]], divisor: f32) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if has_bfloat16() {
        // SAFETY: the processor has these features, and avx512f, which is part of them.
        return unsafe { x86::sum_bfloat16(destination, own, others, divisor) };
    }
    0
}

/// The same for halves.
#[cfg_attr(
    not(all(target_arch = "x86_64", not(miri))),
    expect(unused_variables, reason = "for one architecture")
)]
pub(super) fn sum_float16(destination: &mut [u8], own: usize, others: &[&[u8]], divisor: f32) -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if has_float16() {
        // SAFETY: the processor has these features.
        return unsafe { x86::sum_float16(destination, own, others, divisor) };
    }
    0
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;
    use std::cmp::Ordering;
    use std::mem::transmute;

    use crate::kernels::float16::f32_to_bf16;

    /// The class of subnormal numbers.
    const SUBNORMAL: i32 = 0x20;
    /// Takes words of a vector's halves in turn.
    const IN_TURN: [u16; 32] = {
        let mut order = [0; 32];
        let mut at = 0;
        while at < 32 {
            order[at] = (at / 2 + at % 2 * 16) as u16;
            at += 1;
        }
        order
    };

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub(super) fn sum_bfloat16(destination: &mut [u8], own: usize, others: &[&[u8]], divisor: f32) -> usize {
        let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        // SAFETY: any bits are a vector.
        let in_turn = unsafe { transmute::<[u16; 32], __m512i>(IN_TURN) };
        let ranks = _mm512_set1_ps(divisor);
        // Every other number, as singles: the even ones, and the odd ones.
        let widen = |bytes: [u8; 64]| {
            // SAFETY: any bits are a vector.
            let pairs = unsafe { transmute::<[u8; 64], __m512i>(bytes) };
            let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            (even, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)))
        };
        let finish = |(even, odd): (__m512, __m512), to: &mut [u8; 64]| {
            let (even, odd) = if divisor == 1.0 {
                (even, odd)
            } else {
                (_mm512_div_ps(even, ranks), _mm512_div_ps(odd, ranks))
            };
            let is_subnormal =
                _mm512_fpclass_ps_mask::<SUBNORMAL>(even) | _mm512_fpclass_ps_mask::<SUBNORMAL>(odd);
            if is_subnormal != 0 {
                // GROUP-55: the instruction would make zeros of them.
                // SAFETY: singles are bits, and have no padding.
                let (even, odd) =
                    unsafe { (transmute::<__m512, [f32; 16]>(even), transmute::<__m512, [f32; 16]>(odd)) };
                return round_by_hand(&even, &odd, to);
            }
            // SAFETY: bits are bits.
            let rounded = unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(odd, even)) };
            // SAFETY: the same.
            *to = unsafe { transmute::<__m512i, [u8; 64]>(_mm512_permutexvar_epi16(in_turn, rounded)) };
        };
        let add = |sum: (__m512, __m512), more: (__m512, __m512)| {
            (_mm512_add_ps(sum.0, more.0), _mm512_add_ps(sum.1, more.1))
        };
        sum(destination, own, others, widen, add, finish)
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn sum_float16(destination: &mut [u8], own: usize, others: &[&[u8]], divisor: f32) -> usize {
        let ranks = _mm256_set1_ps(divisor);
        let widen = |bytes: [u8; 64]| {
            // SAFETY: any bits are a vector.
            let vectors = unsafe { transmute::<[u8; 64], [__m128i; 4]>(bytes) };
            let [a, b, c, d] = vectors;
            [_mm256_cvtph_ps(a), _mm256_cvtph_ps(b), _mm256_cvtph_ps(c), _mm256_cvtph_ps(d)]
        };
        let add = |[a, b, c, d]: [__m256; 4], [e, f, g, h]: [__m256; 4]| {
            [_mm256_add_ps(a, e), _mm256_add_ps(b, f), _mm256_add_ps(c, g), _mm256_add_ps(d, h)]
        };
        let round = |sum: __m256| {
            let sum = if divisor == 1.0 { sum } else { _mm256_div_ps(sum, ranks) };
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(sum)
        };
        let finish = |[a, b, c, d]: [__m256; 4], to: &mut [u8; 64]| {
            let rounded = [round(a), round(b), round(c), round(d)];
            // SAFETY: bits are bits.
            *to = unsafe { transmute::<[__m128i; 4], [u8; 64]>(rounded) };
        };
        sum(destination, own, others, widen, add, finish)
    }

    /// The loop of both, with sums in registers.
    #[inline(always)]
    fn sum<S: Copy, const N: usize>(
        destination: &mut [u8],
        own: usize,
        others: &[&[u8]],
        widen: impl Fn([u8; N]) -> S,
        add: impl Fn(S, S) -> S,
        finish: impl Fn(S, &mut [u8; N]),
    ) -> usize {
        let vectors = destination.as_chunks_mut::<N>().0;
        // Loops, not iterators' or arrays' methods: those would be compiled without the vectors.
        if let [other] = others {
            for (to, other) in vectors.iter_mut().zip(other.as_chunks::<N>().0) {
                let (first, second) = if own == 0 { (&*to, other) } else { (other, &*to) };
                finish(add(widen(*first), widen(*second)), to);
            }
        } else {
            for (at, to) in vectors.iter_mut().enumerate() {
                let mut sum = widen(if own == 0 { *to } else { others[0].as_chunks::<N>().0[at] });
                for number in 1..=others.len() {
                    let source = match number.cmp(&own) {
                        Ordering::Less => &others[number].as_chunks::<N>().0[at],
                        Ordering::Equal => &*to,
                        Ordering::Greater => &others[number - 1].as_chunks::<N>().0[at],
                    };
                    sum = add(sum, widen(*source));
                }
                finish(sum, to);
            }
        }
        destination.len() / N * N
    }

    #[cold]
    fn round_by_hand(even: &[f32; 16], odd: &[f32; 16], to: &mut [u8; 64]) {
        for ((even, odd), to) in even.iter().zip(odd).zip(to.as_chunks_mut::<4>().0) {
            *to = (u32::from(f32_to_bf16(*even)) | u32::from(f32_to_bf16(*odd)) << 16).to_ne_bytes();
        }
    }
}

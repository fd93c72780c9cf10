//! What the kernels compute with: one type for each operation, so that each loop is compiled for its own operation.

pub(super) trait Op<A> {
    fn apply(a: A, b: A) -> A;

    /// What happens to the result of all sources, before it is rounded.
    #[inline(always)]
    fn finish(value: A, _ranks: u32) -> A {
        value
    }
}

pub(super) struct Sum;
pub(super) struct Product;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Average;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

/// Real and imaginary part.
#[derive(Clone, Copy)]
pub(super) struct Complex<T>(pub(super) T, pub(super) T);

/// Two singles that have nothing to do with each other.
#[derive(Clone, Copy)]
pub(super) struct Two(pub(super) f32, pub(super) f32);

impl<O: Op<f32>> Op<Two> for O {
    #[inline(always)]
    fn apply(a: Two, b: Two) -> Two {
        Two(O::apply(a.0, b.0), O::apply(a.1, b.1))
    }
    #[inline(always)]
    fn finish(value: Two, ranks: u32) -> Two {
        Two(O::finish(value.0, ranks), O::finish(value.1, ranks))
    }
}

macro_rules! apply {
    ($($op:ident, $type:ty, $a:ident, $b:ident => $result:expr);* $(;)?) => {$(
        impl Op<$type> for $op {
            #[inline(always)]
            fn apply($a: $type, $b: $type) -> $type { $result }
        }
    )*};
}

macro_rules! average {
    ($($type:ty, $sum:ident, $ranks:ident => $result:expr);* $(;)?) => {$(
        impl Op<$type> for Average {
            #[inline(always)]
            fn apply(a: $type, b: $type) -> $type { <Sum as Op<$type>>::apply(a, b) }
            #[inline(always)]
            fn finish($sum: $type, $ranks: u32) -> $type { $result }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        apply! {
            Sum, $type, a, b => a + b;
            Product, $type, a, b => a * b;
            // The comparison with itself lets a NaN through from either side; f32::min would drop it.
            Min, $type, a, b => if a < b || a.is_nan() { a } else { b };
            Max, $type, a, b => if a > b || a.is_nan() { a } else { b };
            Product, Complex<$type>, a, b => Complex(a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0);
        }
        average! {
            $type, sum, ranks => sum / ranks as $type;
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($type:ty),*) => {$(
        apply! {
            Sum, $type, a, b => a.wrapping_add(b);
            Product, $type, a, b => a.wrapping_mul(b);
            Min, $type, a, b => if b < a { b } else { a };
            Max, $type, a, b => if b > a { b } else { a };
            And, $type, a, b => a & b;
            Or, $type, a, b => a | b;
            Xor, $type, a, b => a ^ b;
        }
        average! {
            // 64 bits: the number of ranks need not fit the element's type.
            $type, sum, ranks => (sum as i64 / i64::from(ranks)) as $type;
        }
    )*};
}
integers!(i8, i16, i32, i64, u8);

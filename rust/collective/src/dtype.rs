//! Element types, and which reduction each of them has.

use bytemuck::Pod;
use half::{bf16, f16};
use phalanx_types::{Error, ErrorKind, Result};

/// The type of a buffer's elements. Buffers are bytes in the machine's own order; no alignment is asked of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE double.
    F64 = 1,
    /// IEEE single.
    F32,
    /// IEEE half; accumulated in single.
    F16,
    /// The upper half of a single; accumulated in single.
    BF16,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// One byte, 0 or 1; any other value counts as 1.
    Bool,
    /// Two singles: real, imaginary.
    C64,
    /// Two doubles: real, imaginary.
    C128,
}

impl DType {
    /// Every type there is.
    pub const ALL: [DType; 12] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
        DType::C64,
        DType::C128,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool => 1,
            DType::F16 | DType::BF16 | DType::I16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::F64 | DType::I64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// As torch calls it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "float64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::Bool => "bool",
            DType::C64 => "complex64",
            DType::C128 => "complex128",
        }
    }

    /// The type that torch calls `name`.
    pub fn named(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    pub(crate) fn from_code(code: u8) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }

    const fn is_floating(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    const fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }
}

/// How elements at the same place in every rank's buffer become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReduceOp {
    /// Integers wrap around; for `Bool`, whether any is true.
    Sum,
    /// Integers wrap around; for `Bool`, whether all are true.
    Product,
    /// NaN if any is NaN.
    Min,
    /// NaN if any is NaN.
    Max,
    /// The sum divided by the number of ranks; integers are cut towards zero.
    Average,
    /// Bitwise and; integers and `Bool`.
    BitAnd,
    /// Bitwise or; integers and `Bool`.
    BitOr,
    /// Bitwise exclusive or; integers and `Bool`.
    BitXor,
    /// Each rank's elements times this factor, then the sum; floating point and complex.
    PremulSum(f64),
}

impl ReduceOp {
    /// Every reduction there is, the last with this factor.
    pub const fn all(factor: f64) -> [ReduceOp; 9] {
        [
            ReduceOp::Sum,
            ReduceOp::Product,
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Average,
            ReduceOp::BitAnd,
            ReduceOp::BitOr,
            ReduceOp::BitXor,
            ReduceOp::PremulSum(factor),
        ]
    }

    /// As torch calls it.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Average => "avg",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
            ReduceOp::PremulSum(_) => "premul_sum",
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            ReduceOp::Sum => 1,
            ReduceOp::Product => 2,
            ReduceOp::Min => 3,
            ReduceOp::Max => 4,
            ReduceOp::Average => 5,
            ReduceOp::BitAnd => 6,
            ReduceOp::BitOr => 7,
            ReduceOp::BitXor => 8,
            ReduceOp::PremulSum(_) => 9,
        }
    }

    pub(crate) fn name_of_code(code: u8) -> &'static str {
        ["", "sum", "product", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"]
            .get(usize::from(code))
            .copied()
            .unwrap_or("?")
    }

    /// Whether elements of this type can be reduced so.
    pub const fn supports(self, dtype: DType) -> bool {
        let bits = !dtype.is_floating() && !dtype.is_complex();
        match self {
            ReduceOp::Sum | ReduceOp::Product => true,
            ReduceOp::Min | ReduceOp::Max => !dtype.is_complex(),
            ReduceOp::Average => !matches!(dtype, DType::Bool),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => bits,
            ReduceOp::PremulSum(_) => !bits,
        }
    }

    pub(crate) fn check(self, dtype: DType) -> Result<()> {
        if self.supports(dtype) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, format!("{} has no reduction {:?}", dtype.name(), self.name())))
    }
}

/// A Rust type that is one of the element types, for the typed forms of the operations.
pub trait Element: Pod {
    /// Which one.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })*
    };
}

elements! {
    f64 => F64, f32 => F32, f16 => F16, bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back_to_their_type() {
        for dtype in DType::ALL {
            assert_eq!(DType::named(dtype.name()), Some(dtype));
            assert_eq!(DType::from_code(dtype as u8), Some(dtype));
        }
        assert_eq!(DType::named("float8"), None);
        for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::BitXor, ReduceOp::PremulSum(2.0)] {
            assert_eq!(ReduceOp::name_of_code(op.code()), op.name());
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused_by_name() {
        let error = ReduceOp::Max.check(DType::C64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "complex64 has no reduction \"max\"");
        assert!(ReduceOp::BitOr.check(DType::F32).is_err());
        assert!(ReduceOp::PremulSum(0.5).check(DType::I32).is_err());
        assert!(ReduceOp::BitOr.check(DType::Bool).is_ok());
    }
}

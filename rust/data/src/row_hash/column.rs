//! A column of a block, in memory as Arrow has it.

use phalanx_types::{Error, ErrorKind, Result};

use crate::ends::Ends;

/// A column is in columns no deeper than this; readers of Arrow's format take less.
const MOST_DEPTH: usize = 100;

/// What the values of a column are, and which buffers it has behind that of its validity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A bit each.
    Bool,
    /// Integers of 8 bits.
    Byte,
    /// Integers of 16 bits.
    Short,
    /// Integers of 32 bits, and what Spark has in such.
    Int,
    /// Integers of 64 bits, and what Spark has in such.
    Long,
    /// Numbers of 32 bits.
    Float,
    /// Numbers of 64 bits.
    Double,
    /// Decimals of up to 18 digits, in 128 bits.
    ShortDecimal,
    /// Decimals of more digits, in 128 bits.
    LongDecimal,
    /// Text or binary: ends of 32 bits, and bytes.
    Bytes,
    /// The same with ends of 64 bits.
    WideBytes,
    /// Arrays: ends of 32 bits; their elements are a column.
    List,
    /// Maps: ends of 32 bits; their entries are a column of structs of a key and a value.
    Map,
    /// Structs; their fields are a column each.
    Struct,
}

impl Kind {
    /// All, each at its number: the jar's `ColumnKind` has the same.
    const ALL: [Kind; 14] = [
        Kind::Bool,
        Kind::Byte,
        Kind::Short,
        Kind::Int,
        Kind::Long,
        Kind::Float,
        Kind::Double,
        Kind::ShortDecimal,
        Kind::LongDecimal,
        Kind::Bytes,
        Kind::WideBytes,
        Kind::List,
        Kind::Map,
        Kind::Struct,
    ];

    /// The kind of this number.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where there is none.
    pub fn of(number: usize) -> Result<Kind> {
        Kind::ALL.get(number).copied().ok_or_else(|| invalid(format!("no column is of the kind {number}")))
    }
}

/// A column as whoever has it in memory describes it. Those below it come behind it.
#[derive(Debug, Clone)]
pub struct Described<'a> {
    /// What its values are.
    pub kind: Kind,
    /// How many values it has, nulls among them.
    pub rows: usize,
    /// How many columns are below it, without those below these.
    pub children: usize,
    /// Arrow's buffers of it. The first says by a bit which values are none, and is empty where there is no null.
    pub buffers: Vec<&'a [u8]>,
}

/// A column that has what it should, but for what is looked at when it is read: ends may be anywhere.
#[derive(Debug)]
pub(super) struct Column<'a> {
    pub(super) rows: usize,
    valid: Option<&'a [u8]>,
    pub(super) values: Values<'a>,
}

#[derive(Debug)]
pub(super) enum Values<'a> {
    Bool(&'a [u8]),
    Fixed(Fixed<'a>),
    Bytes(Ends<'a>, &'a [u8]),
    List(Ends<'a>, Box<Column<'a>>),
    /// Of the keys, and of the values.
    Map(Ends<'a>, Box<[Column<'a>; 2]>),
    Struct(Vec<Column<'a>>),
}

/// Values that have the same number of bytes, in the machine's byte order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fixed<'a> {
    Byte(&'a [[u8; 1]]),
    Short(&'a [[u8; 2]]),
    Int(&'a [[u8; 4]]),
    Long(&'a [[u8; 8]]),
    Float(&'a [[u8; 4]]),
    Double(&'a [[u8; 8]]),
    ShortDecimal(&'a [[u8; 16]]),
    LongDecimal(&'a [[u8; 16]]),
}

impl<'a> Column<'a> {
    /// All columns at the top.
    pub(super) fn all(described: &[Described<'a>]) -> Result<Vec<Column<'a>>> {
        let mut rest = described.iter();
        let mut found = Vec::new();
        while rest.len() > 0 {
            found.push(Column::next(&mut rest, MOST_DEPTH)?);
        }
        Ok(found)
    }

    fn next<'d>(rest: &mut impl Iterator<Item = &'d Described<'a>>, depth: usize) -> Result<Column<'a>>
    where
        'a: 'd,
    {
        let own = rest.next().ok_or_else(|| invalid("a column is missing"))?;
        let depth = depth.checked_sub(1).ok_or_else(|| invalid("columns are too deep"))?;
        let mut children = Vec::new();
        for _ in 0..own.children {
            children.push(Column::next(rest, depth)?);
        }
        let (valid, buffers) = own.buffers.split_first().ok_or_else(|| own.refused())?;
        let valid = if valid.is_empty() { None } else { Some(own.sized(valid, own.rows.div_ceil(8))?) };
        Ok(Column { rows: own.rows, valid, values: own.values(buffers, children)? })
    }

    /// Whether a row is a value, and no null. It has to be one of the column's.
    #[inline]
    pub(super) fn is_valid(&self, row: usize) -> bool {
        self.valid.is_none_or(|bits| is_set(bits, row))
    }

    /// Whether all rows are.
    pub(super) fn is_whole(&self) -> bool {
        self.valid.is_none()
    }
}

#[inline]
pub(super) fn is_set(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

impl<'a> Described<'a> {
    fn values(&self, buffers: &[&'a [u8]], children: Vec<Column<'a>>) -> Result<Values<'a>> {
        match (self.kind, buffers) {
            (Kind::Bool, [bits]) => Ok(Values::Bool(self.sized(bits, self.rows.div_ceil(8))?)),
            (Kind::Byte, [of]) => Ok(Values::Fixed(Fixed::Byte(self.fixed(of)?))),
            (Kind::Short, [of]) => Ok(Values::Fixed(Fixed::Short(self.fixed(of)?))),
            (Kind::Int, [of]) => Ok(Values::Fixed(Fixed::Int(self.fixed(of)?))),
            (Kind::Long, [of]) => Ok(Values::Fixed(Fixed::Long(self.fixed(of)?))),
            (Kind::Float, [of]) => Ok(Values::Fixed(Fixed::Float(self.fixed(of)?))),
            (Kind::Double, [of]) => Ok(Values::Fixed(Fixed::Double(self.fixed(of)?))),
            (Kind::ShortDecimal, [of]) => Ok(Values::Fixed(Fixed::ShortDecimal(self.fixed(of)?))),
            (Kind::LongDecimal, [of]) => Ok(Values::Fixed(Fixed::LongDecimal(self.fixed(of)?))),
            (Kind::Bytes, [ends, bytes]) => Ok(Values::Bytes(self.ends(ends, false)?, bytes)),
            (Kind::WideBytes, [ends, bytes]) => Ok(Values::Bytes(self.ends(ends, true)?, bytes)),
            (Kind::List, [ends]) => {
                let [elements] = <[_; 1]>::try_from(children).map_err(|_| self.refused())?;
                Ok(Values::List(self.ends(ends, false)?, Box::new(elements)))
            }
            (Kind::Map, [ends]) => {
                let [entries] = <[_; 1]>::try_from(children).map_err(|_| self.refused())?;
                let Values::Struct(fields) = entries.values else { return Err(self.refused()) };
                let fields = <[_; 2]>::try_from(fields).map_err(|_| self.refused())?;
                Ok(Values::Map(self.ends(ends, false)?, Box::new(fields)))
            }
            (Kind::Struct, []) if children.iter().all(|field| field.rows == self.rows) => {
                Ok(Values::Struct(children))
            }
            _ => Err(self.refused()),
        }
    }

    fn fixed<const WIDTH: usize>(&self, values: &'a [u8]) -> Result<&'a [[u8; WIDTH]]> {
        values.as_chunks().0.get(..self.rows).ok_or_else(|| self.refused())
    }

    fn ends(&self, ends: &'a [u8], wide: bool) -> Result<Ends<'a>> {
        let ends = Ends::new(ends, wide);
        if ends.rows() == self.rows { Ok(ends) } else { Err(self.refused()) }
    }

    fn sized(&self, bits: &'a [u8], least: usize) -> Result<&'a [u8]> {
        bits.get(..least).ok_or_else(|| self.refused())
    }

    fn refused(&self) -> Error {
        let sizes: Vec<_> = self.buffers.iter().map(|buffer| buffer.len()).collect();
        invalid(format!(
            "a column of {:?} with {} rows can't have {} columns below it, and buffers of {sizes:?} bytes",
            self.kind, self.rows, self.children
        ))
    }
}

pub(super) fn invalid(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, problem)
}

//! What a block's rows hash to. Java has the columns in memory of its own, outside of its heap.

use std::slice;

use jni::Env;
use jni::objects::{JLongArray, JObject};
use phalanx_data::{Described, Kind, row_sums};
use phalanx_types::{Error, ErrorKind, Result};

use crate::errors::{Call, ThrowException};
use crate::methods::methods;
use crate::values::{java_signed_longs, longs};

methods! {
    row_sums_of(columns: [jlong]) -> [jlong];
}

fn row_sums_of<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    columns: JLongArray<'local>,
) -> Call<JLongArray<'local>> {
    let numbers = longs(env, &columns)?;
    let sums = row_sums(&described(&numbers)?)?;
    java_signed_longs(env, &[sums.content.cast_signed(), sums.sequence.cast_signed()])
}

/// The columns that these numbers say: of each its kind, its rows, how many columns are below it, how many buffers it
/// has, and the address and the bytes of each.
fn described(numbers: &[i64]) -> Result<Vec<Described<'_>>> {
    let mut rest = numbers.iter();
    let mut columns = Vec::new();
    while rest.len() > 0 {
        let kind = Kind::of(next(&mut rest)?)?;
        let (rows, children, count) = (next(&mut rest)?, next(&mut rest)?, next(&mut rest)?);
        let mut buffers = Vec::new();
        for _ in 0..count {
            let (address, bytes) = (next(&mut rest)?, next(&mut rest)?);
            buffers.push(memory(address, bytes)?);
        }
        columns.push(Described { kind, rows, children, buffers });
    }
    Ok(columns)
}

fn next<'n>(numbers: &mut impl Iterator<Item = &'n i64>) -> Result<usize> {
    let number = numbers.next().ok_or_else(|| invalid("numbers are missing"))?;
    usize::try_from(*number).map_err(|_| invalid(format!("{number} is below 0")))
}

fn memory<'a>(address: usize, bytes: usize) -> Result<&'a [u8]> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if address == 0 || address.checked_add(bytes).is_none() || isize::try_from(bytes).is_err() {
        return Err(invalid(format!("no memory is {bytes} bytes at {address}")));
    }
    // SAFETY: `BlockRows`, which alone calls `Native.rowSumsOf`, gives the addresses of buffers that it has allocated,
    // with as many bytes as it has written there. It neither writes nor frees them during the call, and no slice of
    // them outlives the call. Bytes have no alignment, and any bits are some.
    Ok(unsafe { slice::from_raw_parts(address as *const u8, bytes) })
}

fn invalid(problem: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("a block's columns can't be described so: {problem}"))
}

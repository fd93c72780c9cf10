//! Java's values as Rust's, and back. A null where a value must be is the caller's error.

use std::collections::BTreeMap;

use jni::Env;
use jni::objects::{JByteArray, JLongArray, JObjectArray, JString};
use phalanx_types::{Error, ErrorKind};

use crate::errors::Call;

pub(crate) type JStringArray<'local> = JObjectArray<'local, JString<'local>>;

pub(crate) fn string(env: &Env<'_>, text: &JString<'_>) -> Call<String> {
    Ok(text.try_to_string(env)?)
}

pub(crate) fn optional_string(env: &Env<'_>, text: &JString<'_>) -> Call<Option<String>> {
    if text.is_null() { Ok(None) } else { string(env, text).map(Some) }
}

pub(crate) fn bytes(env: &Env<'_>, array: &JByteArray<'_>) -> Call<Vec<u8>> {
    Ok(env.convert_byte_array(array)?)
}

pub(crate) fn number(what: &str, value: i32) -> Call<u32> {
    Ok(u32::try_from(value)
        .map_err(|_| Error::new(ErrorKind::Invalid, format!("{what} can't be {value}")))?)
}

pub(crate) fn strings(env: &mut Env<'_>, array: &JStringArray<'_>) -> Call<Vec<String>> {
    let length = array.len(env)?;
    let mut all = Vec::with_capacity(length);
    for i in 0..length {
        // One reference at a time: the JVM promises room for sixteen.
        let element = array.get_element(env, i)?;
        all.push(string(env, &element)?);
        env.delete_local_ref(element);
    }
    Ok(all)
}

/// Alternating names and values.
pub(crate) fn pairs(env: &mut Env<'_>, array: &JStringArray<'_>) -> Call<BTreeMap<String, String>> {
    let mut all = strings(env, array)?.into_iter();
    let mut map = BTreeMap::new();
    while let (Some(name), Some(value)) = (all.next(), all.next()) {
        map.insert(name, value);
    }
    Ok(map)
}

pub(crate) fn java_strings<'local, S: AsRef<str>>(
    env: &mut Env<'local>,
    all: &[S],
) -> Call<JStringArray<'local>> {
    let array = JStringArray::new(env, all.len(), JString::null())?;
    for (i, text) in all.iter().enumerate() {
        let element = env.new_string(text)?;
        array.set_element(env, i, &element)?;
        env.delete_local_ref(element);
    }
    Ok(array)
}

pub(crate) fn java_string<'local>(env: &mut Env<'local>, text: &str) -> Call<JString<'local>> {
    Ok(env.new_string(text)?)
}

pub(crate) fn java_bytes<'local>(env: &mut Env<'local>, bytes: &[u8]) -> Call<JByteArray<'local>> {
    Ok(env.byte_array_from_slice(bytes)?)
}

/// Numbers beyond what a long holds are its largest.
pub(crate) fn java_longs<'local>(env: &mut Env<'local>, all: &[u64]) -> Call<JLongArray<'local>> {
    let longs: Vec<i64> = all.iter().map(|number| i64::try_from(*number).unwrap_or(i64::MAX)).collect();
    java_signed_longs(env, &longs)
}

pub(crate) fn java_signed_longs<'local>(env: &mut Env<'local>, all: &[i64]) -> Call<JLongArray<'local>> {
    let array = JLongArray::new(env, all.len())?;
    array.set_region(env, 0, all)?;
    Ok(array)
}

pub(crate) fn longs(env: &Env<'_>, array: &JLongArray<'_>) -> Call<Vec<i64>> {
    let mut all = vec![0; array.len(env)?];
    array.get_region(env, 0, &mut all)?;
    Ok(all)
}

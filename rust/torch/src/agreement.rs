//! Whether all ranks have the same parameters, in shape and to the last bit.
//!
//! TORCH-1 (names-both): when ranks disagree, all of them get an error that names the ranks and the parameter.

use std::hash::Hasher as _;

use phalanx_collective::{DType, Group};
use phalanx_types::{Error, ErrorKind, Result};
use rustc_hash::FxHasher;

/// Compares this rank's `lines`, one a parameter, with those of rank 0.
///
/// # Errors
/// [`ErrorKind::Invalid`] on every rank if they differ on any.
pub(crate) fn same_parameters(group: &mut Group, lines: &[String]) -> Result<()> {
    let mine = lines.join("\n").into_bytes();
    let mut length = (mine.len() as u64).to_ne_bytes();
    group.broadcast(&mut length, DType::U8, 0)?;
    let mut text = if group.rank() == 0 { mine } else { vec![0; u64::from_ne_bytes(length) as usize] };
    group.broadcast(&mut text, DType::U8, 0)?;
    let text = String::from_utf8_lossy(&text);
    let theirs: Vec<&str> = text.lines().collect();
    let first = first_difference(lines, &theirs);
    let differ = gather(group, &[u64::from(first.is_some())])?;
    let differ: Vec<usize> = (0..group.world_size()).filter(|rank| differ[*rank] != 0).collect();
    let Some(rank) = differ.first() else { return Ok(()) };
    let text = match first {
        Some(what) => format!("rank {}: {what}", group.rank()),
        None => {
            format!("rank {rank} does not have the parameters of rank 0; what it has is in its own error")
        }
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

/// In words.
fn first_difference(mine: &[String], theirs: &[&str]) -> Option<String> {
    let differs = |index: &usize| mine.get(*index).map(String::as_str) != theirs.get(*index).copied();
    let index = (0..mine.len().max(theirs.len())).find(differs)?;
    let (mine, theirs) =
        (mine.get(index).map_or("none", String::as_str), theirs.get(index).unwrap_or(&"none"));
    Some(format!("parameter {index} is {mine}, but on rank 0 it is {theirs}"))
}

/// Compares the contents that all ranks have for the parameters called `names`, by a fingerprint of each.
///
/// # Errors
/// [`ErrorKind::Invalid`] on every rank if they differ on any.
pub(crate) fn same_contents(group: &mut Group, names: &[&str], fingerprints: &[u64]) -> Result<()> {
    let all = gather(group, fingerprints)?;
    let parameters = fingerprints.len();
    for (index, name) in names.iter().enumerate() {
        let of = |rank: usize| all[rank * parameters + index];
        let differ: Vec<String> =
            (0..group.world_size()).filter(|rank| of(*rank) != of(0)).map(|rank| rank.to_string()).collect();
        if !differ.is_empty() {
            let text =
                format!("replicas differ: {name} is not on rank {} what it is on rank 0", differ.join(", "));
            return Err(Error::new(ErrorKind::Invalid, text));
        }
    }
    Ok(())
}

/// 64 bits that depend on all of `bytes`.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

fn gather(group: &mut Group, numbers: &[u64]) -> Result<Vec<u64>> {
    let input: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let mut output = vec![0; input.len() * group.world_size()];
    group.all_gather(&input, &mut output, DType::U8)?;
    let words = output.as_chunks::<8>().0;
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parameter_that_differs_is_named_with_both_shapes() {
        let mine = ["a float32 [2]".to_string(), "b float32 [3]".to_string()];
        assert_eq!(first_difference(&mine, &["a float32 [2]", "b float32 [3]"]), None);
        let told = first_difference(&mine, &["a float32 [2]", "b float32 [4]"]).unwrap();
        assert_eq!(told, "parameter 1 is b float32 [3], but on rank 0 it is b float32 [4]");
        assert!(first_difference(&mine, &["a float32 [2]"]).unwrap().ends_with("on rank 0 it is none"));
        assert!(first_difference(&mine[..1], &["a float32 [2]", "x"]).unwrap().contains("1 is none"));
    }

    #[test]
    fn one_bit_changes_the_fingerprint() {
        let mut bytes = [7; 100];
        let before = fingerprint(&bytes);
        bytes[99] ^= 0x80;
        assert_ne!(fingerprint(&bytes), before);
    }
}

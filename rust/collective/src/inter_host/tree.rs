//! Broadcast and reduce between hosts, along a binomial tree, piece by piece.
//!
//! Steps: log2 h a piece of 512 KiB; pieces follow one another through the tree. Sent: at most b log2 h.

use phalanx_types::Result;

use super::{Channel, PIECE_BYTES};
use crate::kernels::Combine;

/// Every rank's `buffer` becomes the root's. `root` is a position in the channel.
pub(crate) fn broadcast(channel: &Channel<'_>, buffer: &mut [u8], root: usize) -> Result<()> {
    let hosts = channel.ranks.len();
    // Counted from the root.
    let relative = (channel.me + hosts - root) % hosts;
    let position = |relative: usize| (relative + root) % hosts;
    let (parent, children) = family(relative, hosts);
    // One piece even of nothing: that all called the same is found out all the same.
    for piece in pieces(buffer) {
        if let Some(parent) = parent {
            channel.recv(position(parent), piece)?;
        }
        for child in &children {
            channel.send(position(*child), piece)?;
        }
    }
    Ok(())
}

/// The root's `buffer` becomes the reduction of all; the others' are used up.
pub(crate) fn reduce(channel: &Channel<'_>, buffer: &mut [u8], combine: &Combine, root: usize) -> Result<()> {
    let hosts = channel.ranks.len();
    // Counted from the root.
    let relative = (channel.me + hosts - root) % hosts;
    let position = |relative: usize| (relative + root) % hosts;
    let (parent, children) = family(relative, hosts);
    let mut theirs = vec![0; buffer.len().min(PIECE_BYTES)];
    for piece in pieces(buffer) {
        for child in children.iter().rev() {
            let theirs = &mut theirs[..piece.len()];
            channel.recv(position(*child), theirs)?;
            combine.apply(piece, 0, &[theirs]);
        }
        if let Some(parent) = parent {
            channel.send(position(parent), piece)?;
        }
    }
    Ok(())
}

fn pieces(buffer: &mut [u8]) -> Vec<&mut [u8]> {
    if buffer.is_empty() { vec![buffer] } else { buffer.chunks_mut(PIECE_BYTES).collect() }
}

/// Who sends to a member of the tree, and to whom it sends, those with the largest families first.
fn family(number: usize, hosts: usize) -> (Option<usize>, Vec<usize>) {
    let lowest_bit = if number == 0 { hosts.next_power_of_two() } else { number & number.wrapping_neg() };
    let parent = (number != 0).then_some(number & number.wrapping_sub(1));
    let mut children = Vec::new();
    let mut distance = lowest_bit / 2;
    while distance > 0 {
        if number + distance < hosts {
            children.push(number + distance);
        }
        distance /= 2;
    }
    (parent, children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_but_the_root_has_one_parent_that_knows_it() {
        for hosts in 1..40 {
            for number in 0..hosts {
                let (parent, children) = family(number, hosts);
                assert_eq!(parent.is_none(), number == 0);
                assert!(parent.is_none_or(|parent| family(parent, hosts).1.contains(&number)));
                assert!(children.iter().all(|child| family(*child, hosts).0 == Some(number)));
            }
        }
    }
}

//! Which parameters share a buffer: a pure function of their types and sizes, equal on all ranks.

use std::ops::Range;

use phalanx_collective::DType;

/// Parameters whose gradients travel in one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The type of all of them.
    pub(crate) dtype: DType,
    /// Which parameters, in the order in which they lie in the buffer, and the elements that each takes.
    pub(crate) parts: Vec<(usize, Range<usize>)>,
}

impl Plan {
    /// How many elements the buffer has.
    pub(crate) fn elements(&self) -> usize {
        self.parts.last().map_or(0, |(_, range)| range.end)
    }
}

/// Divides parameters of these types and numbers of elements into buckets of at most `max_bytes`, in reverse order:
/// the last parameter's gradient is there first. A larger parameter has a bucket of its own. Each type has its own
/// buckets, which are listed in the order in which they are begun.
pub(crate) fn plan(parameters: &[(DType, usize)], max_bytes: usize) -> Vec<Plan> {
    let mut plans: Vec<Plan> = Vec::new();
    for (index, &(dtype, elements)) in parameters.iter().enumerate().rev() {
        let last = plans.iter_mut().rev().find(|plan| plan.dtype == dtype);
        match last {
            Some(plan) if (plan.elements() + elements).saturating_mul(dtype.size()) <= max_bytes => {
                let start = plan.elements();
                plan.parts.push((index, start..start + elements));
            }
            _ => plans.push(Plan { dtype, parts: vec![(index, 0..elements)] }),
        }
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(plans: &[Plan]) -> Vec<Vec<usize>> {
        plans.iter().map(|plan| plan.parts.iter().map(|(index, _)| *index).collect()).collect()
    }

    #[test]
    fn buckets_are_filled_in_reverse_order_up_to_their_limit() {
        let plans = plan(&[(DType::F32, 100), (DType::F32, 20), (DType::F32, 5), (DType::F32, 4)], 100);
        assert_eq!(order(&plans), [vec![3, 2], vec![1], vec![0]]);
        assert_eq!(plans[0].parts, [(3, 0..4), (2, 4..9)]);
        assert_eq!(plans[2].elements(), 100, "a parameter that is larger than the limit is whole");
    }

    #[test]
    fn each_type_has_its_own_buckets() {
        let plans = plan(&[(DType::F32, 1), (DType::BF16, 2), (DType::F32, 3), (DType::F64, 4)], 1000);
        assert_eq!(order(&plans), [vec![3], vec![2, 0], vec![1]]);
        assert_eq!(plans[2].dtype, DType::BF16);
    }

    #[test]
    fn no_parameters_need_no_bucket_and_empty_ones_no_room() {
        assert!(plan(&[], 100).is_empty());
        let plans = plan(&[(DType::F32, 0), (DType::F32, 3)], 100);
        assert_eq!(plans[0].parts, [(1, 0..3), (0, 3..3)]);
    }
}

//! Replicas as threads: what they begin with, what becomes of gradients, and what happens when they differ.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::time::Duration;

use phalanx_collective::{Group, GroupOptions, HashStore};
use phalanx_torch::{BUCKET_BYTES, Replica, named_parameters};
use phalanx_types::{ErrorKind, Result};
use tch::nn::{Init, VarStore};
use tch::{Device, Kind, Tensor};

/// No test waits longer for anything.
const LONG: Duration = Duration::from_secs(60);

/// Runs `rank` on so many ranks, each in a thread; what each came to.
fn ranks<T: Send>(world_size: usize, rank: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let store = HashStore::default();
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let (mut store, rank) = (store.clone(), &rank);
            scope.spawn(move || {
                let mut options = GroupOptions::new(number, world_size, "test");
                options.timeout = LONG;
                rank(Group::join(options, &mut store).unwrap())
            })
        };
        let threads: Vec<_> = (0..world_size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).contiguous().view(-1)).unwrap()
}

/// A parameter of this shape whose elements are `value`.
fn parameter(name: &str, shape: &[i64], kind: Kind, value: f64) -> (String, Tensor) {
    let tensor = Tensor::full(shape, value, (kind, Device::Cpu)).set_requires_grad(true);
    (name.into(), tensor)
}

fn weigh(tensor: &Tensor, weight: f64) {
    (tensor * weight).sum(Kind::Double).backward();
}

#[test]
fn all_begin_as_rank_0() {
    let values = ranks(3, |group| {
        let store = VarStore::new(Device::Cpu);
        tch::manual_seed(group.rank() as i64);
        let own = Init::Uniform { lo: group.rank() as f64, up: group.rank() as f64 + 1.0 };
        let weight = store.root().var("weight", &[3, 5], own);
        let fixed = store.root().ones_no_train("fixed", &[2]);
        let _ = tch::no_grad(|| fixed.shallow_clone().fill_(group.rank() as f64));
        let half = store.root().var("half", &[], Init::Const(0.0));
        let mut replica = Replica::of_store(group, &store).unwrap();
        replica.check_equal().unwrap();
        (numbers(&weight), numbers(&fixed), numbers(&half))
    });
    assert!(values[0].0.iter().all(|number| (0.0..1.0).contains(number)), "TORCH-4");
    assert_eq!(values[1], values[0], "TORCH-4");
    assert_eq!(values[2], values[0], "TORCH-4");
    assert_eq!(values[2].1, [0.0, 0.0], "what is not trained, too");
}

#[test]
fn gradients_become_their_average_in_every_type_and_whatever_the_buckets() {
    for bucket_bytes in [0, 24, BUCKET_BYTES] {
        let averages = ranks(4, |group| {
            let rank = group.rank() as f64;
            let parameters = vec![
                parameter("single", &[4, 3], Kind::Float, 1.0),
                parameter("double", &[2], Kind::Double, 1.0),
                parameter("brain", &[5, 1, 2], Kind::BFloat16, 1.0),
                parameter("empty", &[0, 3], Kind::Float, 1.0),
                parameter("scalar", &[], Kind::Float, 1.0),
            ];
            let tensors: Vec<Tensor> = parameters.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
            let mut replica = Replica::new(group, parameters, bucket_bytes).unwrap();
            let mut seen = Vec::new();
            for step in 0..2 {
                for (index, tensor) in tensors.iter().enumerate() {
                    tensor.shallow_clone().zero_grad();
                    weigh(tensor, (index as f64 + 1.0) * rank + f64::from(step));
                }
                replica.average_gradients().unwrap();
                seen.push(tensors.iter().map(|tensor| numbers(&tensor.grad())).collect::<Vec<_>>());
            }
            seen
        });
        // The average of 0, 1, 2, 3 is 1.5; every number here is exact in bfloat16.
        let expected = |step: f64| -> Vec<Vec<f64>> {
            let elements = [12, 2, 10, 0, 1];
            (0..5).map(|index| vec![(index as f64 + 1.0) * 1.5 + step; elements[index]]).collect()
        };
        for rank in averages {
            assert_eq!(rank, [expected(0.0), expected(1.0)], "TORCH-5 with buckets of {bucket_bytes}");
        }
    }
}

#[test]
fn a_parameter_that_only_one_rank_used_has_a_gradient_on_all_and_one_that_none_used_on_none() {
    // Each alone in its bucket: rank 1 averages in place, rank 0 has nothing that it could.
    for bucket_bytes in [0, BUCKET_BYTES] {
        let grads = ranks(2, |group| {
            let rank = group.rank();
            let parameters = vec![
                parameter("shared", &[2], Kind::Float, 1.0),
                parameter("sometimes", &[2, 2], Kind::Float, f64::INFINITY),
                parameter("never", &[2], Kind::Float, 1.0),
            ];
            let tensors: Vec<Tensor> = parameters.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
            let mut replica = Replica::new(group, parameters, bucket_bytes).unwrap();
            weigh(&tensors[0], 4.0);
            if rank == 1 {
                weigh(&tensors[1], 6.0);
            }
            replica.average_gradients().unwrap();
            assert!(!tensors[2].grad().defined(), "TORCH-5");
            (numbers(&tensors[0].grad()), numbers(&tensors[1].grad()))
        });
        assert_eq!(grads, vec![(vec![4.0; 2], vec![3.0; 4]); 2], "TORCH-5, TORCH-2");
    }
}

#[test]
fn gradients_that_are_not_contiguous_keep_their_places() {
    let grads = ranks(2, |group| {
        let weight = Tensor::arange(6, (Kind::Float, Device::Cpu)).view([2, 3]).tr().set_requires_grad(true);
        let factor = Tensor::arange(6, (Kind::Float, Device::Cpu)).view([3, 2]) * (group.rank() as f64 + 1.0);
        let mut replica =
            Replica::new(group, vec![("weight".into(), weight.shallow_clone())], BUCKET_BYTES).unwrap();
        (&weight * factor).sum(Kind::Float).backward();
        replica.average_gradients().unwrap();
        numbers(&weight.grad())
    });
    assert_eq!(grads, vec![[0.0, 1.5, 3.0, 4.5, 6.0, 7.5]; 2]);
}

#[test]
fn replicas_that_drifted_are_found_and_the_parameter_is_named_on_every_rank() {
    let errors = ranks(3, |group| {
        let rank = group.rank();
        let parameters =
            vec![parameter("still", &[2], Kind::Float, 1.0), parameter("moved", &[4], Kind::Float, 1.0)];
        let moved = parameters[1].1.shallow_clone();
        let mut replica = Replica::new(group, parameters, BUCKET_BYTES).unwrap();
        replica.check_equal().unwrap();
        if rank == 2 {
            // The last bit of one element.
            let _ = tch::no_grad(|| moved.get(3).fill_(1.0 + f64::from(f32::EPSILON)));
        }
        let error = replica.check_equal().unwrap_err();
        assert_eq!(replica.average(rank as f64).unwrap(), 1.0, "the group is still good");
        (error.kind(), error.to_string())
    });
    let text = "replicas differ: moved is not on rank 2 what it is on rank 0".to_string();
    assert_eq!(errors, vec![(ErrorKind::Invalid, text); 3], "TORCH-1");
}

#[test]
fn ranks_with_other_parameters_are_told_which() {
    let errors = ranks(3, |group| {
        let rows = if group.rank() == 1 { 3 } else { 2 };
        let parameters = vec![
            parameter("first", &[2], Kind::Float, 1.0),
            parameter("second", &[rows, 2], Kind::Float, 1.0),
        ];
        let error: Result<Replica> = Replica::new(group, parameters, BUCKET_BYTES);
        let error = error.err().unwrap();
        (error.kind(), error.to_string())
    });
    assert!(errors.iter().all(|(kind, _)| *kind == ErrorKind::Invalid), "TORCH-1");
    let own =
        "rank 1: parameter 1 is \"second\" (Float [3, 2]), but on rank 0 it is \"second\" (Float [2, 2])";
    assert_eq!(errors[1].1, own, "TORCH-1");
    assert!(errors[0].1.starts_with("rank 1 does not have"), "TORCH-1: {}", errors[0].1);
}

#[test]
fn what_has_no_average_is_refused_before_anything_is_sent() {
    let refused = |make: fn() -> (String, Tensor)| {
        let errors = ranks(1, |group| Replica::new(group, vec![make()], BUCKET_BYTES).err().unwrap());
        assert_eq!(errors[0].kind(), ErrorKind::Invalid);
        errors[0].to_string()
    };
    let text = refused(|| parameter("half", &[2], Kind::Half, 1.0));
    assert!(text.starts_with("half is of type Half"), "{text}");
    let text = refused(|| ("nothing".into(), Tensor::new()));
    assert!(text.starts_with("nothing is no tensor"), "{text}");
}

#[test]
fn sparse_gradients_are_an_error_that_names_the_parameter() {
    let errors = ranks(1, |group| {
        let (name, table) = parameter("table", &[4, 2], Kind::Float, 1.0);
        let mut replica = Replica::new(group, vec![(name, table.shallow_clone())], BUCKET_BYTES).unwrap();
        let rows = Tensor::from_slice(&[1i64, 3]);
        Tensor::embedding(&table, &rows, -1, false, true).sum(Kind::Float).backward();
        replica.average_gradients().unwrap_err()
    });
    assert!(errors[0].to_string().contains("the gradient of table is sparse"), "{}", errors[0]);
}

#[test]
fn a_rank_that_leaves_fails_the_others_instead_of_leaving_them_waiting() {
    let outcomes = ranks(2, |group| {
        let rank = group.rank();
        let parameters = vec![parameter("weight", &[2], Kind::Float, 1.0)];
        let mut replica = Replica::new(group, parameters, BUCKET_BYTES).unwrap();
        if rank == 1 {
            return None;
        }
        Some(replica.average_gradients().unwrap_err().kind())
    });
    assert_eq!(outcomes, [Some(ErrorKind::PeerLost), None]);
}

#[test]
fn parameters_keep_the_order_in_which_they_were_registered() {
    let store = VarStore::new(Device::Cpu);
    for name in ["z", "a", "m"] {
        let _ = store.root().sub("layer").zeros(name, &[2]);
    }
    let _ = store.root().zeros_no_train("b", &[1]);
    let names: Vec<String> = named_parameters(&store).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["layer.z", "layer.a", "layer.m", "b"]);
}

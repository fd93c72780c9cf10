//! One rank's copy of a model. It begins as rank 0's and stays equal, because all ranks step with the same gradients.
//!
//! - TORCH-4 (same-parameters): after [`Replica::new`] all ranks have rank 0's parameters, to the last bit.
//! - TORCH-5 (same-gradients): after [`Replica::average_gradients`] all ranks have the same gradients, to the last bit;
//!   a parameter that no rank used has none.
//!
//! TorchScript modules keep buffers beside their parameters (running means). These are not seen, because `tch` lists
//! parameters only.

use std::collections::BTreeSet;

use phalanx_collective::{DType, Group, ReduceOp};
use phalanx_types::{Error, ErrorKind, Result};
use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::agreement::{fingerprint, same_contents, same_parameters};
use crate::bucket::Bucket;
use crate::error::torch_error;
use crate::plan::{Plan, plan};

/// Enough to make up for what a call costs. DistributedDataParallel's 25 MiB would only cost copies here: a larger
/// gradient is averaged where it is.
pub const BUCKET_BYTES: usize = 1 << 20;

/// One rank's copy of a model and its place in the group. Gradients may be float32, float64 or bfloat16.
pub struct Replica {
    group: Group,
    /// Those with a gradient first, in the order in which they were registered.
    parameters: Vec<(String, Tensor)>,
    trained: usize,
    buckets: Vec<Bucket>,
}

impl Replica {
    /// Checks that all ranks have the same parameters in the same order, and gives them the values of rank 0.
    /// Buckets are of at most `bucket_bytes`: [`BUCKET_BYTES`] will do. Blocks until all ranks call it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a trainable parameter of another type, and where ranks' parameters differ in name,
    /// type, shape or whether they are trained; what the group fails with.
    pub fn new(group: Group, parameters: Vec<(String, Tensor)>, bucket_bytes: usize) -> Result<Replica> {
        if let Some((name, _)) = parameters.iter().find(|(_, tensor)| !tensor.defined()) {
            return Err(Error::new(ErrorKind::Invalid, format!("{name} is no tensor: it is undefined")));
        }
        let (mut parameters, others): (Vec<_>, Vec<_>) =
            parameters.into_iter().partition(|(_, tensor)| tensor.requires_grad());
        let trained = parameters.len();
        parameters.extend(others);
        let mut sizes = Vec::with_capacity(trained);
        let mut kinds = Vec::with_capacity(trained);
        let mut lines = Vec::with_capacity(parameters.len());
        for (index, (name, tensor)) in parameters.iter().enumerate() {
            let kind = tensor.f_kind().map_err(torch_error("read a parameter's type"))?;
            if index < trained {
                sizes.push((dtype_of(name, kind)?, tensor.numel()));
                kinds.push(kind);
            }
            let trains = if index < trained { "" } else { ", not trained" };
            lines.push(format!("{name:?} ({kind:?} {:?}{trains})", tensor.size()));
        }
        let shapes: Vec<Vec<i64>> = parameters[..trained].iter().map(|(_, tensor)| tensor.size()).collect();
        let plans = plan(&sizes, bucket_bytes);
        let kind = |plan: &Plan| kinds[plan.parts[0].0];
        let buckets = plans.into_iter().map(|plan| Bucket::new(plan.clone(), kind(&plan), &shapes)).collect();
        let mut replica = Replica { group, parameters, trained, buckets };
        same_parameters(&mut replica.group, &lines)?;
        replica.broadcast_parameters()?;
        Ok(replica)
    }

    /// The same for all variables of `store`: what [`tch::TrainableCModule::load`] registers, or layers of [`tch::nn`].
    pub fn of_store(group: Group, store: &VarStore) -> Result<Replica> {
        Replica::new(group, named_parameters(store), BUCKET_BYTES)
    }

    /// Between the backward pass and the optimizer's step: every gradient becomes the average over all ranks. Where
    /// only some ranks used a parameter the others count as zero, and get a gradient. Blocks until all ranks call it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a sparse gradient; what the group fails with.
    pub fn average_gradients(&mut self) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        let mut gradients = self.gradients()?;
        let mut used: Vec<u8> = gradients.iter().map(|gradient| u8::from(gradient.is_some())).collect();
        self.group.all_reduce(&mut used, DType::U8, ReduceOp::Max)?;
        for bucket in &mut self.buckets {
            for (index, average) in bucket.average(&mut self.group, &mut gradients)? {
                let index = *index;
                if used[index] == 0 {
                    continue;
                }
                let (name, parameter) = &self.parameters[index];
                let gradient = match gradients[index].take() {
                    Some(gradient) => Ok(gradient),
                    None => zero_gradient(parameter),
                };
                gradient
                    .and_then(|mut gradient| gradient.f_copy_(average))
                    .map_err(torch_error(&format!("give {name} the average of its gradients")))?;
            }
        }
        Ok(())
    }

    /// The mean of a number over all ranks, such as a loss, for what people read. Blocks until all ranks call it.
    pub fn average(&mut self, number: f64) -> Result<f64> {
        let mut number = [number];
        self.group.all_reduce_of(&mut number, ReduceOp::Average)?;
        Ok(number[0])
    }

    /// Compares all ranks' parameters to the last bit, by 64 bits of each. Blocks until all ranks call it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] on all ranks if they differ, with the first parameter that does and on which ranks.
    pub fn check_equal(&mut self) -> Result<()> {
        let fingerprints = self
            .parameters
            .iter()
            .map(|(name, tensor)| Ok(fingerprint(&contents(name, tensor)?)))
            .collect::<Result<Vec<u64>>>()?;
        let names: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        same_contents(&mut self.group, &names, &fingerprints)
    }

    /// The group, for operations beside those of the replica.
    pub fn group(&mut self) -> &mut Group {
        &mut self.group
    }

    fn broadcast_parameters(&mut self) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (name, tensor) in &mut self.parameters {
            let mut bytes = contents(name, tensor)?;
            self.group.broadcast(&mut bytes, DType::U8, 0)?;
            if self.group.rank() == 0 {
                continue;
            }
            tensor
                .f_kind()
                .and_then(|kind| Tensor::f_from_data_size(&bytes, &tensor.size(), kind))
                .and_then(|value| tensor.f_copy_(&value))
                .map_err(torch_error(&format!("give {name} the value that rank 0 has")))?;
        }
        Ok(())
    }

    /// The gradients that there are, by parameter.
    fn gradients(&self) -> Result<Vec<Option<Tensor>>> {
        let trained = &self.parameters[..self.trained];
        let gradient = |(name, tensor): &(String, Tensor)| {
            let gradient = tensor.f_grad().map_err(torch_error(&format!("read the gradient of {name}")))?;
            if !gradient.defined() {
                return Ok(None);
            }
            if gradient.is_sparse() {
                let text = format!("the gradient of {name} is sparse: only dense ones are averaged");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            Ok(Some(gradient))
        };
        trained.iter().map(gradient).collect()
    }
}

/// All variables of a store: those that are trained in the order in which they were registered, then the others by
/// name.
pub fn named_parameters(store: &VarStore) -> Vec<(String, Tensor)> {
    // The store keeps names in no order, and the order without names; both are of the same tensors.
    let mut named: Vec<(String, Tensor)> = store.variables().into_iter().collect();
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut taken = BTreeSet::new();
    let mut all = Vec::with_capacity(named.len());
    for (number, tensor) in store.trainable_variables().into_iter().enumerate() {
        let is_it = |candidate: &(usize, &(String, Tensor))| {
            let (index, (_, named)) = candidate;
            !taken.contains(index) && named.data_ptr() == tensor.data_ptr() && named.size() == tensor.size()
        };
        let found = named.iter().enumerate().find(is_it).map(|(index, (name, _))| (index, name.clone()));
        let name = found.as_ref().map_or_else(|| format!("parameter {number}"), |(_, name)| name.clone());
        taken.extend(found.map(|(index, _)| index));
        all.push((name, tensor));
    }
    let others = named.into_iter().enumerate().filter(|(index, _)| !taken.contains(index));
    all.extend(others.map(|(_, other)| other));
    all
}

fn dtype_of(name: &str, kind: Kind) -> Result<DType> {
    match kind {
        Kind::Float => Ok(DType::F32),
        Kind::Double => Ok(DType::F64),
        Kind::BFloat16 => Ok(DType::BF16),
        other => {
            let text = format!("{name} is of type {other:?}: only Float, Double and BFloat16 are averaged");
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

/// A copy of a tensor's elements.
fn contents(name: &str, tensor: &Tensor) -> Result<Vec<u8>> {
    let doing = format!("read {name}");
    let kind = tensor.f_kind().map_err(torch_error(&doing))?;
    let mut bytes = vec![0; tensor.numel() * kind.elt_size_in_bytes()];
    tensor.f_copy_data_u8(&mut bytes, tensor.numel()).map_err(torch_error(&doing))?;
    Ok(bytes)
}

/// Makes the gradient of a parameter that has none. `tch` can't set one, but the backward pass of its sum, times 0,
/// does.
fn zero_gradient(parameter: &Tensor) -> std::result::Result<Tensor, tch::TchError> {
    tch::with_grad(|| parameter.f_sum(parameter.f_kind()?)?.f_mul_scalar(0)?.f_backward())?;
    parameter.f_grad()
}

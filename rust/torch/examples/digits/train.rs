//! One rank: what a user writes.

use std::time::Duration;

use phalanx_torch::{NativeRank, Replica, torch_error};
use phalanx_types::{Error, ErrorKind, Result};
use tch::nn::{OptimizerConfig as _, VarStore, sgd};
use tch::{Device, Reduction, TchError, Tensor, TrainableCModule};

use crate::Task;
use crate::driver::say;

/// How long any rank may keep the others waiting.
const PATIENCE: Duration = Duration::from_secs(120);

/// Trains on this rank's part of the data; the losses of all steps, as JSON.
pub(crate) fn train(rank: &NativeRank) -> Result<Vec<u8>> {
    let task = read_task(rank)?;
    let store = VarStore::new(Device::Cpu);
    let module = TrainableCModule::load(task.folder.join("model.pt"), store.root())
        .map_err(torch_error("load model.pt, a TorchScript module"))?;
    let data = Data::load(&task).map_err(torch_error("read the data"))?;
    let mut optimizer =
        sgd(0.9, 0.0, 0.0, false).build_copt(0.05).map_err(torch_error("make an optimizer"))?;
    for parameter in store.trainable_variables() {
        optimizer.add_parameters(&parameter, 0).map_err(torch_error("make an optimizer"))?;
    }
    let mut replica = Replica::of_store(rank.join("digits", PATIENCE)?, &store)?;
    let steps = data.order.size()[0];
    let mut losses = Vec::new();
    for step in 0..steps {
        if task.dies == Some(rank.rank) && step == steps / 2 {
            die();
        }
        let loss = data
            .batch(step, rank.rank)
            .and_then(|(images, targets)| {
                optimizer.zero_grad()?;
                let loss = cross_entropy(&module.forward_ts(&[images])?, &targets)?;
                loss.f_backward()?;
                Ok(loss)
            })
            .map_err(torch_error("compute the gradients"))?;
        replica.average_gradients()?;
        optimizer.step().map_err(torch_error("take a step"))?;
        let loss = loss.f_double_value(&[]).map_err(torch_error("read the loss"))?;
        losses.push(loss);
        if (step + 1) % 10 == 0 {
            let loss = replica.average(loss)?;
            if rank.rank == 0 {
                say(&format!("step {:2}: loss {loss:.4}", step + 1));
            }
        }
    }
    replica.check_equal()?;
    if rank.rank == 0 {
        let accuracy = data.accuracy(&module).map_err(torch_error("test the model"))?;
        say(&format!("accuracy on {} other digits: {accuracy:.3}", data.test_targets.size()[0]));
    }
    serde_json::to_vec(&losses).map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))
}

fn read_task(rank: &NativeRank) -> Result<Task> {
    let path = rank.payload.as_deref().unwrap_or("no payload".as_ref());
    let bytes = std::fs::read(path).map_err(|error| Error::io("read the payload", &error))?;
    let wrong = |error| Error::new(ErrorKind::Protocol, format!("the payload is no task: {error}"));
    serde_json::from_slice(&bytes).map_err(wrong)
}

fn cross_entropy(logits: &Tensor, targets: &Tensor) -> std::result::Result<Tensor, TchError> {
    logits.f_cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0)
}

/// For the test of what a lost rank comes to.
fn die() {
    let kill = format!("kill -KILL {}", std::process::id());
    let _ = std::process::Command::new("/bin/sh").args(["-c", &kill]).status();
}

struct Data {
    images: Tensor,
    targets: Tensor,
    test_images: Tensor,
    test_targets: Tensor,
    /// Which digits each rank sees at each step.
    order: Tensor,
}

impl Data {
    fn load(task: &Task) -> std::result::Result<Data, TchError> {
        let mut arrays = Tensor::read_npz(task.folder.join("data.npz"))?;
        let mut take = |name: &str| {
            let place = arrays.iter().position(|(array, _)| array == name);
            let place = place.ok_or_else(|| TchError::TensorNameNotFound(name.into(), "data.npz".into()))?;
            Ok::<_, TchError>(arrays.swap_remove(place).1)
        };
        Ok(Data {
            images: take("images")?,
            targets: take("targets")?,
            test_images: take("test_images")?,
            test_targets: take("test_targets")?,
            order: Tensor::read_npy(task.folder.join("order.npy"))?,
        })
    }

    fn batch(&self, step: i64, rank: usize) -> std::result::Result<(Tensor, Tensor), TchError> {
        let chosen = self.order.f_get(step)?.f_get(rank as i64)?;
        Ok((self.images.f_index_select(0, &chosen)?, self.targets.f_index_select(0, &chosen)?))
    }

    fn accuracy(&self, module: &TrainableCModule) -> std::result::Result<f64, TchError> {
        let answers = tch::no_grad(|| module.forward_ts(&[&self.test_images]))?.f_argmax(1, false)?;
        let right = answers.f_eq_tensor(&self.test_targets)?;
        right.f_to_kind(tch::Kind::Double)?.f_mean(tch::Kind::Double)?.f_double_value(&[])
    }
}

//! The checks before a run starts: facts from Python and Spark go in, a decision comes out.

use std::time::Duration;

use phalanx_job::preflight::{
    self, Conf, DriverGpus, Found, OwnExecutors, Profile, ProfileNeed, Said, SlotNeed, Slots, TrainObject,
    Wish,
};
use phalanx_job::settings;
use pyo3::prelude::*;

use crate::errors::checked;

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(preflight_keys, module)?)?;
    module.add_function(wrap_pyfunction!(num_processes, module)?)?;
    module.add_function(wrap_pyfunction!(check_train_object, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(may_start, module)?)?;
    module.add_function(wrap_pyfunction!(profile, module)?)?;
    module.add_function(wrap_pyfunction!(executor_cores, module)?)?;
    module.add_function(wrap_pyfunction!(look_for_slots, module)?)?;
    module.add_function(wrap_pyfunction!(look_before_restart, module)?)?;
    module.add_function(wrap_pyfunction!(lease_gpus, module)?)?;
    module.add_function(wrap_pyfunction!(release_gpus, module)?)?;
    module.add_function(wrap_pyfunction!(explain_stage, module)?)?;
    Ok(())
}

#[pyfunction]
fn preflight_keys() -> [Vec<&'static str>; 5] {
    let with_gang = |keys: &[&'static str]| keys.iter().copied().chain(preflight::GANG_KEYS).collect();
    let (slots, profile) = (with_gang(&preflight::SLOT_KEYS), with_gang(&preflight::PROFILE_KEYS));
    let cores = preflight::CORES_KEYS.into();
    [preflight::PLAN_KEYS.into(), settings::keys().collect(), slots, profile, cores]
}

#[pyfunction]
fn num_processes(py: Python<'_>, number: Option<i64>, shown: &str) -> PyResult<u32> {
    checked(py, preflight::num_processes(number, shown))
}

#[pyfunction]
#[pyo3(signature = (*, path, is_file, is_directory, other, keywords))]
fn check_train_object(
    py: Python<'_>,
    path: Option<&str>,
    is_file: bool,
    is_directory: bool,
    other: Option<&str>,
    keywords: Vec<String>,
) -> PyResult<()> {
    let found = Found::of(is_file, is_directory);
    let object = match (path, other) {
        (Some(path), _) => TrainObject::File { path, found, shipped: None },
        (None, Some(shown)) => TrainObject::Other(shown),
        (None, None) => TrainObject::Function,
    };
    checked(py, preflight::check_train_object(&object, &keywords))
}

#[pyfunction]
#[pyo3(signature = (ranks, *, local_mode, use_gpu, driver_has_gpus, conf))]
fn plan(
    py: Python<'_>,
    ranks: u32,
    local_mode: bool,
    use_gpu: bool,
    driver_has_gpus: bool,
    conf: Conf,
) -> PyResult<(u32, u32, Option<String>)> {
    let wish = Wish { ranks, local_mode, use_gpu, driver_has_gpus, conf: &conf };
    checked(py, preflight::plan(&wish)).map(|plan| (plan.ranks, plan.tasks, plan.warning))
}

#[pyfunction]
#[pyo3(signature = (*, conf))]
fn may_start(py: Python<'_>, conf: Conf) -> PyResult<Option<String>> {
    checked(py, preflight::may_start(&conf))
}

#[pyfunction]
#[pyo3(signature = (*, conf))]
#[allow(clippy::needless_pass_by_value, reason = "PyO3 makes it of a dictionary")]
fn executor_cores(conf: Conf) -> u32 {
    preflight::executor_cores(&conf).unwrap_or(0)
}

/// As `_native.pyi` says.
type Taken = (u32, u32, Option<(u32, u32, String, String, u64)>);

#[pyfunction]
#[pyo3(signature = (*, use_gpu, local_mode, of_dataframe, spark, conf))]
fn profile(
    py: Python<'_>,
    use_gpu: bool,
    local_mode: bool,
    of_dataframe: bool,
    spark: &str,
    conf: Conf,
) -> PyResult<Option<Taken>> {
    let need = ProfileNeed { use_gpu, local_mode, of_dataframe, spark, conf: &conf };
    checked(py, preflight::profile(&need)).map(|profile| profile.map(taken))
}

fn taken(profile: Profile) -> Taken {
    let own =
        profile.executors.map(|own| (own.cores, own.gpus, own.gpu_script, own.gpu_vendor, own.overhead_mib));
    (profile.cpus, profile.gpus, own)
}

fn profile_of((cpus, gpus, own): Taken) -> Profile {
    let executors = own.map(|(cores, gpus, gpu_script, gpu_vendor, overhead_mib)| OwnExecutors {
        cores,
        gpus,
        gpu_script,
        gpu_vendor,
        overhead_mib,
    });
    Profile { cpus, gpus, executors }
}

#[pyfunction]
#[pyo3(signature = (tasks, *, master, conf, profile, timeout, there, waited, looks))]
#[allow(clippy::too_many_arguments, reason = "keywords of one Python call")]
fn look_for_slots(
    py: Python<'_>,
    tasks: u32,
    master: &str,
    conf: Conf,
    profile: Option<Taken>,
    timeout: f64,
    there: Option<u32>,
    waited: f64,
    looks: u32,
) -> PyResult<Option<(f64, Option<String>)>> {
    let profile = profile.map(profile_of);
    let need = SlotNeed { tasks, master, conf: &conf, profile: profile.as_ref(), timeout: seconds(timeout) };
    checked(py, preflight::look(&need, there, seconds(waited), looks)).map(packed)
}

#[pyfunction]
fn look_before_restart(
    tasks: u32,
    there: Option<u32>,
    waited: f64,
    timeout: f64,
) -> Option<(f64, Option<String>)> {
    packed(preflight::look_before_restart(tasks, there, seconds(waited), seconds(timeout)))
}

fn packed(slots: Slots) -> Option<(f64, Option<String>)> {
    match slots {
        Slots::Enough => None,
        Slots::Wait { pause, log } => Some((pause.as_secs_f64(), log)),
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number.max(0.0)).unwrap_or(Duration::MAX)
}

#[pyfunction]
#[pyo3(signature = (ranks, *, use_gpu, local_mode, master, addresses, visible))]
fn lease_gpus(
    py: Python<'_>,
    ranks: u32,
    use_gpu: bool,
    local_mode: bool,
    master: &str,
    addresses: Option<Vec<String>>,
    visible: Option<&str>,
) -> PyResult<(u64, Vec<String>)> {
    let addresses = addresses.as_deref();
    let gpus = DriverGpus { ranks, use_gpu, local_mode, master, addresses, visible };
    checked(py, gpus.lease()).map(|lease| (lease.id, lease.gpus))
}

#[pyfunction]
fn release_gpus(lease: u64) {
    preflight::release(lease);
}

#[pyfunction]
#[pyo3(signature = (class, text, /))]
fn explain_stage(class: &str, text: &str) -> (&'static str, String) {
    let failure = preflight::explain(&[Said { class, text }]);
    (failure.kind.name(), failure.sentence)
}

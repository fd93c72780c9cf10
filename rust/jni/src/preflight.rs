//! The checks before a run starts: facts from Spark go in, a decision comes out.

use std::time::Duration;

use jni::Env;
use jni::objects::{JObject, JString};
use jni::sys::{jboolean, jint, jlong};
use phalanx_job::preflight::{
    self, DriverGpus, Found, OwnExecutors, Profile, ProfileNeed, Said, SlotNeed, Slots, TrainObject, Wish,
};
use phalanx_job::settings;

use crate::errors::{Call, ThrowException};
use crate::methods::methods;
use crate::values::{
    JStringArray, java_string, java_strings, number, optional_string, pairs, string, strings,
};

methods! {
    preflight_keys() -> [JString];
    plan(
        num_processes: jint, local_mode: jboolean, use_gpu: jboolean, driver_has_gpus: jboolean, conf: [JString],
    ) -> [JString];
    check_train_file(path: JString, is_file: jboolean, is_directory: jboolean, shipped: JString) -> void;
    may_start(conf: [JString]) -> JString;
    profile(use_gpu: jboolean, local_mode: jboolean, spark: JString, conf: [JString]) -> [JString];
    executor_cores(conf: [JString]) -> jint;
    look_for_slots(
        tasks: jint, master: JString, conf: [JString], profile: [JString], timeout_millis: jlong, there: jint,
        waited_millis: jlong, looks: jint,
    ) -> [JString];
    look_before_restart(tasks: jint, there: jint, waited_millis: jlong, timeout_millis: jlong) -> jlong;
    lease_gpus(
        ranks: jint, use_gpu: jboolean, local_mode: jboolean, master: JString, addresses: [JString],
        visible: JString,
    ) -> [JString];
    release_gpus(lease: jlong) -> void;
    explain_stage(said: [JString]) -> [JString];
}

fn preflight_keys<'local>(env: &mut Env<'local>, _this: JObject<'local>) -> Call<JStringArray<'local>> {
    let mut keys: Vec<&str> = settings::keys().collect();
    keys.extend(preflight::PLAN_KEYS);
    keys.extend(preflight::PROFILE_KEYS);
    java_strings(env, &keys)
}

fn plan<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    num_processes: jint,
    local_mode: jboolean,
    use_gpu: jboolean,
    driver_has_gpus: jboolean,
    conf: JStringArray<'local>,
) -> Call<JStringArray<'local>> {
    let ranks = preflight::num_processes(Some(num_processes.into()), "")?;
    let conf = pairs(env, &conf)?;
    let plan = preflight::plan(&Wish { ranks, local_mode, use_gpu, driver_has_gpus, conf: &conf })?;
    let numbers = [plan.ranks.to_string(), plan.tasks.to_string()];
    java_strings(env, &numbers.into_iter().chain(plan.warning).collect::<Vec<_>>())
}

fn check_train_file<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    path: JString<'local>,
    is_file: jboolean,
    is_directory: jboolean,
    shipped: JString<'local>,
) -> Call<()> {
    let (path, shipped) = (string(env, &path)?, optional_string(env, &shipped)?);
    let found = Found::of(is_file, is_directory);
    let object = TrainObject::File { path: &path, found, shipped: shipped.as_deref() };
    Ok(preflight::check_train_object(&object, &[])?)
}

fn may_start<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    conf: JStringArray<'local>,
) -> Call<JString<'local>> {
    match preflight::may_start(&pairs(env, &conf)?)? {
        Some(warning) => java_string(env, &warning),
        None => Ok(JString::null()),
    }
}

fn profile<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    use_gpu: jboolean,
    local_mode: jboolean,
    spark: JString<'local>,
    conf: JStringArray<'local>,
) -> Call<JStringArray<'local>> {
    let (spark, conf) = (string(env, &spark)?, pairs(env, &conf)?);
    let need = ProfileNeed { use_gpu, local_mode, of_dataframe: false, spark: &spark, conf: &conf };
    java_strings(env, &preflight::profile(&need)?.map_or_else(Vec::new, texts_of))
}

fn executor_cores<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    conf: JStringArray<'local>,
) -> Call<jint> {
    Ok(preflight::executor_cores(&pairs(env, &conf)?).unwrap_or(0) as jint)
}

/// As `Native.profile` says.
fn texts_of(Profile { cpus, gpus, executors }: Profile) -> Vec<String> {
    let own = executors.map(|own| {
        let numbers =
            [own.cores.into(), own.gpus.into(), own.overhead_mib].map(|number: u64| number.to_string());
        numbers.into_iter().chain([own.gpu_script, own.gpu_vendor])
    });
    [cpus, gpus].map(|number| number.to_string()).into_iter().chain(own.into_iter().flatten()).collect()
}

fn profile_of(texts: &[String]) -> Option<Profile> {
    let number = |at: usize| -> Option<u32> { texts.get(at)?.parse().ok() };
    let own = || {
        Some(OwnExecutors {
            cores: number(2)?,
            gpus: number(3)?,
            overhead_mib: number(4)?.into(),
            gpu_script: texts.get(5)?.clone(),
            gpu_vendor: texts.get(6)?.clone(),
        })
    };
    Some(Profile { cpus: number(0)?, gpus: number(1)?, executors: own() })
}

#[allow(clippy::too_many_arguments, reason = "the arguments of a Java method")]
fn look_for_slots<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    tasks: jint,
    master: JString<'local>,
    conf: JStringArray<'local>,
    profile: JStringArray<'local>,
    timeout_millis: jlong,
    there: jint,
    waited_millis: jlong,
    looks: jint,
) -> Call<JStringArray<'local>> {
    let profile = profile_of(&strings(env, &profile)?);
    let need = SlotNeed {
        tasks: number("the number of tasks", tasks)?,
        master: &string(env, &master)?,
        conf: &pairs(env, &conf)?,
        profile: profile.as_ref(),
        timeout: millis(timeout_millis),
    };
    let (there, looks) = (number("the number of slots", there)?, number("the number of looks", looks)?);
    match preflight::look(&need, Some(there), millis(waited_millis), looks)? {
        Slots::Enough => Ok(JStringArray::null()),
        Slots::Wait { pause, log } => {
            let pause = pause.as_millis().to_string();
            java_strings(env, &[pause].into_iter().chain(log).collect::<Vec<_>>())
        }
    }
}

fn look_before_restart<'local>(
    _env: &mut Env<'local>,
    _this: JObject<'local>,
    tasks: jint,
    there: jint,
    waited_millis: jlong,
    timeout_millis: jlong,
) -> Call<jlong> {
    let (tasks, there) = (number("the number of tasks", tasks)?, number("the number of slots", there)?);
    let slots =
        preflight::look_before_restart(tasks, Some(there), millis(waited_millis), millis(timeout_millis));
    Ok(match slots {
        Slots::Enough => 0,
        Slots::Wait { pause, .. } => jlong::try_from(pause.as_millis()).unwrap_or(jlong::MAX),
    })
}

fn millis(number: jlong) -> Duration {
    Duration::from_millis(u64::try_from(number).unwrap_or(0))
}

#[allow(clippy::too_many_arguments, reason = "the arguments of a Java method")]
fn lease_gpus<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    ranks: jint,
    use_gpu: jboolean,
    local_mode: jboolean,
    master: JString<'local>,
    addresses: JStringArray<'local>,
    visible: JString<'local>,
) -> Call<JStringArray<'local>> {
    let visible = optional_string(env, &visible)?;
    let gpus = DriverGpus {
        ranks: number("the number of ranks", ranks)?,
        use_gpu,
        local_mode,
        master: &string(env, &master)?,
        addresses: Some(&strings(env, &addresses)?),
        visible: visible.as_deref(),
    };
    let lease = gpus.lease()?;
    java_strings(env, &[lease.id.to_string()].into_iter().chain(lease.gpus).collect::<Vec<_>>())
}

fn release_gpus<'local>(_env: &mut Env<'local>, _this: JObject<'local>, lease: jlong) -> Call<()> {
    preflight::release(u64::try_from(lease).unwrap_or(0));
    Ok(())
}

/// Classes and messages in turn, of an exception and of its causes.
fn explain_stage<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    said: JStringArray<'local>,
) -> Call<JStringArray<'local>> {
    let said = strings(env, &said)?;
    let (pairs, _) = said.as_chunks::<2>();
    let said: Vec<Said<'_>> = pairs.iter().map(|[class, text]| Said { class, text }).collect();
    let failure = preflight::explain(&said);
    java_strings(env, &[failure.kind.name().to_string(), failure.sentence])
}

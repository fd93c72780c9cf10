//! Java calls Rust: the native methods of `dev.phalanx.spark.jni.Native`, in its order.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jni::Env;
use jni::objects::{JByteArray, JLongArray, JObject, JString};
use jni::sys::{jboolean, jint, jlong};
use phalanx_job::settings::{self, Settings};
use phalanx_job::{
    Endpoint, Here, Home, Hub, HubOptions, Metric, Payload, StageLook, Way, collect_logs, take_logs,
};
use phalanx_types::stacks::group;
use phalanx_types::{Attempt, Deadline, Error, ErrorKind, Job, NodeSpec, RankProgram, Result, SparkTask};

use crate::callbacks::JvmCallbacks;
use crate::errors::{Call, ThrowException};
use crate::hubs;
use crate::methods::methods;
use crate::values::{
    JStringArray, bytes, java_bytes, java_longs, java_string, java_strings, longs, number, optional_string,
    pairs, string, strings,
};

methods! {
    version() -> JString;
    new_job(name: JString, ranks: jint, tasks: jint, use_gpu: jboolean, settings: [JString]) -> [jbyte];
    setting_keys() -> [JString];
    setting_warnings(settings: [JString]) -> [JString];
    rank_variables(settings: [JString], given: [JString]) -> [JString];
    job_grace_millis(job: [jbyte]) -> jlong;
    job_gang(job: [jbyte]) -> JString;
    job_least_tasks(job: [jbyte]) -> jint;
    slots_timeout_millis(settings: [JString]) -> jlong;
    grace_millis(settings: [JString]) -> jlong;
    hub_endpoint(driver_bind: JString, driver_host: JString, set_bind: JString, set_host: JString) -> [JString];
    open_hub(job: [jbyte], bind: JString, advertise: JString, work_dir: JString) -> jlong;
    node_spec(
        hub: jlong, attempt: jint, python: JString, program: [JString], env: [JString], local_gpus: [JString],
    ) -> [jbyte];
    next_event(hub: jlong, timeout_millis: jlong) -> [JString];
    result_path(hub: jlong, rank: jint) -> JString;
    logs(hub: jlong, rank: jint) -> JString;
    snapshot(hub: jlong) -> JString;
    stacks(hub: jlong, timeout_millis: jlong) -> [JString];
    stage_ended(hub: jlong, attempt: jint, problem: JString) -> void;
    stage_seen(hub: jlong, attempt: jint, running: jint, slots: jint, free: jint) -> void;
    decommissioned(hub: jlong, tasks: [jlong]) -> void;
    stop(hub: jlong, reason: JString) -> void;
    close_hub(hub: jlong) -> void;
    drop_logs(hub: jlong) -> void;
    run_node(
        spec: [jbyte], payload: [jbyte], payload_file: JString, here: JString, home: JString, env: [JString],
        callbacks: dev.phalanx.spark.jni.NodeCallbacks,
    ) -> void;
    hub_of(spec: [jbyte]) -> [JString];
    run_carrier(
        spec: [jbyte], carrier: jint, wanted: [JString], tunnel: JString,
        callbacks: dev.phalanx.spark.jni.NodeCallbacks,
    ) -> jboolean;
    prestart_pool(settings: [JString], python: JString, application: [JString], home: JString, env: [JString]) -> void;
    metrics() -> [JString];
    pool_usage() -> [jlong];
    end_pools() -> void;
    drain_logs() -> [JString];
    fail_for_test(kind: JString, message: JString) -> void;
}

fn version<'local>(env: &mut Env<'local>, _this: JObject<'local>) -> Call<JString<'local>> {
    java_string(env, env!("CARGO_PKG_VERSION"))
}

fn new_job<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    name: JString<'local>,
    ranks: jint,
    tasks: jint,
    use_gpu: jboolean,
    settings: JStringArray<'local>,
) -> Call<JByteArray<'local>> {
    let (ranks, tasks) = (number("the number of ranks", ranks)?, number("the number of tasks", tasks)?);
    let settings = Settings::read(&pairs(env, &settings)?)?;
    let job = settings.job(&string(env, &name)?, ranks, tasks, use_gpu)?;
    java_bytes(env, &job.to_json())
}

fn setting_keys<'local>(env: &mut Env<'local>, _this: JObject<'local>) -> Call<JStringArray<'local>> {
    java_strings(env, &settings::keys().collect::<Vec<_>>())
}

fn setting_warnings<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<JStringArray<'local>> {
    let settings = pairs(env, &settings)?;
    Settings::read(&settings)?;
    java_strings(env, &settings::unknown_keys(settings.keys().map(String::as_str)))
}

fn rank_variables<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
    given: JStringArray<'local>,
) -> Call<JStringArray<'local>> {
    let (settings, given) = (pairs(env, &settings)?, pairs(env, &given)?);
    let found: Vec<String> = phalanx_job::rank_variables(&settings, &given)?
        .into_iter()
        .flat_map(|(name, value)| [name, value])
        .collect();
    java_strings(env, &found)
}

fn job_grace_millis<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    job: JByteArray<'local>,
) -> Call<jlong> {
    Ok(millis(read_job(env, &job)?.policy.grace))
}

fn job_gang<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    job: JByteArray<'local>,
) -> Call<JString<'local>> {
    let gang = read_job(env, &job)?.policy.gang;
    java_string(env, gang.name())
}

fn job_least_tasks<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    job: JByteArray<'local>,
) -> Call<jint> {
    Ok(jint::try_from(read_job(env, &job)?.least_tasks()).unwrap_or(jint::MAX))
}

fn read_job<'local>(env: &mut Env<'local>, job: &JByteArray<'local>) -> Call<Job> {
    Ok(Job::from_json(&bytes(env, job)?)?)
}

fn attempt_of(attempt: jint) -> Call<Attempt> {
    Ok(Attempt::new(number("an attempt", attempt)?))
}

pub(crate) fn millis(time: Duration) -> jlong {
    jlong::try_from(time.as_millis()).unwrap_or(jlong::MAX)
}

fn slots_timeout_millis<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<jlong> {
    Ok(millis(Settings::read(&pairs(env, &settings)?)?.slots_timeout))
}

fn grace_millis<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<jlong> {
    Ok(millis(Settings::read(&pairs(env, &settings)?)?.policy.grace))
}

fn hub_endpoint<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    driver_bind: JString<'local>,
    driver_host: JString<'local>,
    set_bind: JString<'local>,
    set_host: JString<'local>,
) -> Call<JStringArray<'local>> {
    let driver = Endpoint::new(&string(env, &driver_bind)?, &string(env, &driver_host)?);
    let set = Endpoint::new(&string(env, &set_bind)?, &string(env, &set_host)?);
    let Endpoint { bind, host } = Endpoint::of_hub(driver, set);
    java_strings(env, &[bind, host])
}

fn open_hub<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    job: JByteArray<'local>,
    bind: JString<'local>,
    advertise: JString<'local>,
    work_dir: JString<'local>,
) -> Call<jlong> {
    collect_logs();
    let job = read_job(env, &job)?;
    let options = HubOptions {
        bind: string(env, &bind)?,
        advertise: string(env, &advertise)?,
        work_dir: PathBuf::from(string(env, &work_dir)?),
    };
    Ok(hubs::add(Hub::open(job, &options)?))
}

#[allow(clippy::too_many_arguments, reason = "the arguments of a Java method")]
fn node_spec<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    attempt: jint,
    python: JString<'local>,
    program: JStringArray<'local>,
    variables: JStringArray<'local>,
    local_gpus: JStringArray<'local>,
) -> Call<JByteArray<'local>> {
    let program = match optional_string(env, &python)? {
        Some(python) => RankProgram::Python(Some(python)),
        None => RankProgram::Command(strings(env, &program)?),
    };
    let (variables, local_gpus) = (pairs(env, &variables)?, strings(env, &local_gpus)?);
    let spec = hubs::get(hub)?.node_spec(attempt_of(attempt)?, program, variables, local_gpus);
    java_bytes(env, &spec.pack())
}

fn next_event<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    timeout_millis: jlong,
) -> Call<JStringArray<'local>> {
    match hubs::get(hub)?.next(within(timeout_millis))? {
        None => Ok(JStringArray::null()),
        Some(event) => java_strings(env, &event.pack()),
    }
}

fn within(millis: jlong) -> Deadline {
    Deadline::after(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}

fn result_path<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    rank: jint,
) -> Call<JString<'local>> {
    match hubs::get(hub)?.result_path(number("a rank", rank)?) {
        Some(path) => java_string(env, &path.to_string_lossy()),
        None => Ok(JString::null()),
    }
}

fn logs<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    rank: jint,
) -> Call<JString<'local>> {
    java_string(env, &hubs::logs(hub)?.newest(number("a rank", rank)?))
}

fn snapshot<'local>(env: &mut Env<'local>, _this: JObject<'local>, hub: jlong) -> Call<JString<'local>> {
    java_string(env, &hubs::get(hub)?.snapshot())
}

fn stacks<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    timeout_millis: jlong,
) -> Call<JStringArray<'local>> {
    let answer = hubs::get(hub)?.ask_for_stacks();
    let Some(stacks) = answer.wait(within(timeout_millis))? else { return Ok(JStringArray::null()) };
    let grouped = group(&stacks);
    let by_rank = stacks.into_iter().flat_map(|of| [of.rank.to_string(), of.text]);
    java_strings(env, &[grouped].into_iter().chain(by_rank).collect::<Vec<_>>())
}

fn stage_ended<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    attempt: jint,
    problem: JString<'local>,
) -> Call<()> {
    hubs::get(hub)?.stage_ended(attempt_of(attempt)?, optional_string(env, &problem)?);
    Ok(())
}

/// `running` is negative where the stage isn't submitted yet.
fn stage_seen<'local>(
    _env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    attempt: jint,
    running: jint,
    slots: jint,
    free: jint,
) -> Call<()> {
    let running = u32::try_from(running).ok();
    let (slots, free) = (number("the number of slots", slots)?, number("the number of free slots", free)?);
    hubs::get(hub)?.stage_seen(attempt_of(attempt)?, StageLook { running, slots, free });
    Ok(())
}

fn decommissioned<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    tasks: JLongArray<'local>,
) -> Call<()> {
    let id = |task: i64| {
        let invalid =
            |_| Error::new(ErrorKind::Invalid, format!("the task's id is {task}, but can't be negative"));
        u64::try_from(task).map_err(invalid)
    };
    let tasks = longs(env, &tasks)?.into_iter().map(id).collect::<Result<_>>()?;
    hubs::get(hub)?.decommissioned(tasks);
    Ok(())
}

fn stop<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    reason: JString<'local>,
) -> Call<()> {
    hubs::get(hub)?.stop(&string(env, &reason)?);
    Ok(())
}

fn close_hub<'local>(_env: &mut Env<'local>, _this: JObject<'local>, hub: jlong) -> Call<()> {
    hubs::close(hub);
    Ok(())
}

fn drop_logs<'local>(_env: &mut Env<'local>, _this: JObject<'local>, hub: jlong) -> Call<()> {
    hubs::drop_logs(hub);
    Ok(())
}

fn hub_of<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    spec: JByteArray<'local>,
) -> Call<JStringArray<'local>> {
    let spec = NodeSpec::unpack(&bytes(env, &spec)?)?;
    java_strings(env, &[spec.job.id, spec.hub])
}

/// What only the task knows, as `Node.scala` writes it.
#[derive(serde::Deserialize)]
struct TaskHere {
    partition: u32,
    /// `TaskContext`'s stage, task attempt id and attempt number; absent where there is no task.
    #[serde(default)]
    stage: u32,
    #[serde(default)]
    task: u64,
    #[serde(default)]
    attempt_number: u32,
    host: String,
    gpus: Option<Vec<String>>,
    work_dir: PathBuf,
    tunnel: Option<String>,
}

impl TaskHere {
    fn from_json(text: &str) -> Result<TaskHere> {
        serde_json::from_str(text)
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("a task can't start here ({e})")))
    }
}

#[allow(clippy::too_many_arguments, reason = "the arguments of a Java method")]
fn run_node<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    spec: JByteArray<'local>,
    payload: JByteArray<'local>,
    payload_file: JString<'local>,
    here: JString<'local>,
    home: JString<'local>,
    variables: JStringArray<'local>,
    callbacks: JObject<'local>,
) -> Call<()> {
    collect_logs();
    let spec = NodeSpec::unpack(&bytes(env, &spec)?)?;
    let (payload, payload_file) = (bytes(env, &payload)?, optional_string(env, &payload_file)?);
    let payload = match &payload_file {
        Some(file) => Payload::File(Path::new(file)),
        None => Payload::Bytes(&payload),
    };
    let TaskHere { partition, stage, task: id, attempt_number: number, host, gpus, work_dir, tunnel } =
        TaskHere::from_json(&string(env, &here)?)?;
    let home = home_at(env, &home, &variables)?;
    let other_ways = tunnel.map(Way::Tunnel).into_iter().collect();
    let task = SparkTask { stage, id, number, ..SparkTask::default() };
    let here = Here { partition, task, host, gpus, work_dir, home, other_ways };
    let mut jvm = JvmCallbacks::new(env, &callbacks);
    let outcome = phalanx_job::run_node(&spec, payload, &here, &mut jvm);
    match jvm.failed() {
        Some(error) => Err(error),
        None => Ok(outcome?),
    }
}

fn run_carrier<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    spec: JByteArray<'local>,
    carrier: jint,
    wanted: JStringArray<'local>,
    tunnel: JString<'local>,
    callbacks: JObject<'local>,
) -> Call<jboolean> {
    collect_logs();
    let spec = NodeSpec::unpack(&bytes(env, &spec)?)?;
    let carrier = number("a carrier's number", carrier)?;
    let wanted = strings(env, &wanted)?;
    let other_ways = optional_string(env, &tunnel)?.map(Way::Tunnel).into_iter().collect();
    let mut jvm = JvmCallbacks::new(env, &callbacks);
    let served = phalanx_job::run_carrier(&spec, carrier, &wanted, other_ways, &mut jvm);
    match jvm.failed() {
        Some(error) => Err(error),
        None => Ok(served?),
    }
}

/// What the jar has unpacked into a folder of this executor's.
pub(crate) fn home_at<'local>(
    env: &mut Env<'local>,
    folder: &JString<'local>,
    variables: &JStringArray<'local>,
) -> Call<Home> {
    let folder = PathBuf::from(string(env, folder)?);
    let (guard, package) = (folder.join("phalanx-guard"), folder.join("python"));
    Ok(Home { guard, package, env: pairs(env, variables)?, ..Home::default() })
}

fn prestart_pool<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
    python: JString<'local>,
    application: JStringArray<'local>,
    home: JString<'local>,
    variables: JStringArray<'local>,
) -> Call<()> {
    collect_logs();
    let settings = Settings::read(&pairs(env, &settings)?)?;
    let program = RankProgram::Python(Some(string(env, &python)?));
    let (application, home) = (pairs(env, &application)?, home_at(env, &home, &variables)?);
    phalanx_job::prestart_pool(&settings.warm, &settings.cpus, &program, &application, &home);
    Ok(())
}

fn metrics<'local>(env: &mut Env<'local>, _this: JObject<'local>) -> Call<JStringArray<'local>> {
    let declared = Metric::ALL.into_iter().flat_map(|metric| {
        let (name, kind, _) = metric.declaration();
        [name, kind.name(), metric.source().name()]
    });
    java_strings(env, &declared.collect::<Vec<_>>())
}

fn pool_usage<'local>(env: &mut Env<'local>, _this: JObject<'local>) -> Call<JLongArray<'local>> {
    let usage = phalanx_job::pool_usage();
    java_longs(env, &[usage.pools, usage.resident_bytes, usage.forks])
}

fn end_pools<'local>(_env: &mut Env<'local>, _this: JObject<'local>) -> Call<()> {
    phalanx_job::end_pools();
    Ok(())
}

fn drain_logs<'local>(env: &mut Env<'local>, _this: JObject<'local>) -> Call<JStringArray<'local>> {
    let records = take_logs();
    let fields: Vec<String> =
        records.into_iter().flat_map(|(level, text)| [level.to_string(), text]).collect();
    java_strings(env, &fields)
}

/// For the tests of BINDING-2 and TYPES-3: fails by the kind of this name, or panics, which nothing else is known to
/// do.
fn fail_for_test<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    kind: JString<'local>,
    message: JString<'local>,
) -> Call<()> {
    Err(Error::for_test(&string(env, &kind)?, string(env, &message)?).into())
}

//! Java calls Rust: the native methods of `dev.phalanx.spark.Native`, in its order.

use std::path::PathBuf;
use std::time::Duration;

use jni::objects::{JByteArray, JLongArray, JObject, JString};
use jni::sys::{jboolean, jint, jlong};
use jni::{Env, NativeMethod, native_method};
use phalanx_job::settings::{self, Settings};
use phalanx_job::{
    DriverJob, DriverOptions, Event, NodeOptions, collect_logs, run_node as run_node_of, take_logs,
};
use phalanx_rendezvous::HubAddress;
use phalanx_types::stacks::group;
use phalanx_types::{Deadline, Job};

use crate::errors::{Call, ThrowTrainingException};
use crate::host::JvmHost;
use crate::hubs;
use crate::values::{
    JStringArray, bytes, java_bytes, java_longs, java_string, java_strings, number, optional_string, pairs,
    string, strings, token,
};

/// Exports each function as a method of `Native`, its types checked, under the one error policy.
macro_rules! methods {
    ($($name:ident $arguments:tt -> $returned:tt;)*) => {
        $(const _: NativeMethod = native_method! {
            java_type = "dev.phalanx.spark.Native",
            error_policy = ThrowTrainingException,
            extern fn $name $arguments -> $returned,
        };)*
    };
}

methods! {
    version() -> JString;
    new_job(name: JString, ranks: jint, tasks: jint, use_gpu: jboolean, settings: [JString]) -> [jbyte];
    setting_warnings(settings: [JString]) -> [JString];
    slots_timeout_millis(settings: [JString]) -> jlong;
    stage_choice(settings: [JString]) -> JString;
    open_hub(job: [jbyte], bind: JString, advertise: JString, work_dir: JString) -> jlong;
    hub_address(hub: jlong) -> JString;
    hub_token(hub: jlong) -> [jbyte];
    next_event(hub: jlong, timeout_millis: jlong) -> [JString];
    result_path(hub: jlong, rank: jint) -> JString;
    logs(hub: jlong, rank: jint) -> JString;
    stacks(hub: jlong, timeout_millis: jlong) -> [JString];
    node_report(hub: jlong, report: [jbyte]) -> void;
    stage_ended(hub: jlong, attempt: jint, problem: JString) -> void;
    stop(hub: jlong, reason: JString) -> void;
    close_hub(hub: jlong) -> void;
    run_node(
        job: [jbyte], payload: [jbyte], hub: JString, token: [jbyte], partition: jint, attempt: jint, host: JString,
        gpus: [JString], program: [JString], pool: [JString], env: [JString], work_dir: JString, guard: JString,
        node: dev.phalanx.spark.NodeHost,
    ) -> [jbyte];
    prestart_pool(settings: [JString], guard: JString, program: [JString], env: [JString]) -> void;
    pool_usage() -> [jlong];
    end_pools() -> void;
    drain_logs() -> [JString];
    panic_for_test(message: JString) -> void;
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

fn setting_warnings<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<JStringArray<'local>> {
    let settings = pairs(env, &settings)?;
    Settings::read(&settings)?;
    java_strings(env, &settings::unknown_keys(settings.keys().map(String::as_str)))
}

fn slots_timeout_millis<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<jlong> {
    let timeout = Settings::read(&pairs(env, &settings)?)?.slots_timeout;
    Ok(jlong::try_from(timeout.as_millis()).unwrap_or(jlong::MAX))
}

fn stage_choice<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<JString<'local>> {
    let stage = Settings::read(&pairs(env, &settings)?)?.stage;
    java_string(env, &stage)
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
    let job = Job::from_json(&bytes(env, &job)?)?;
    let options = DriverOptions {
        bind: string(env, &bind)?,
        advertise: string(env, &advertise)?,
        work_dir: PathBuf::from(string(env, &work_dir)?),
    };
    Ok(hubs::add(DriverJob::open(job, &options)?))
}

fn hub_address<'local>(env: &mut Env<'local>, _this: JObject<'local>, hub: jlong) -> Call<JString<'local>> {
    java_string(env, hubs::get(hub)?.address())
}

fn hub_token<'local>(env: &mut Env<'local>, _this: JObject<'local>, hub: jlong) -> Call<JByteArray<'local>> {
    java_bytes(env, hubs::get(hub)?.token())
}

fn next_event<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    timeout_millis: jlong,
) -> Call<JStringArray<'local>> {
    let event = hubs::get(hub)?.next(within(timeout_millis))?;
    let fields = match event {
        None => return Ok(JStringArray::null()),
        Some(Event::Output(text)) => vec!["output".to_string(), text],
        Some(Event::Phase(phase)) => {
            let rank = phase.rank.map_or(-1, i64::from);
            vec!["phase".into(), phase.name, rank.to_string(), phase.at.as_secs_f64().to_string()]
        }
        Some(Event::Status(text)) => vec!["status".into(), text],
        Some(Event::Report(report)) => {
            vec!["report".into(), report.rank.to_string(), report.step.to_string(), report.values]
        }
        Some(Event::Resubmit { attempt }) => vec!["resubmit".into(), attempt.to_string()],
        Some(Event::Finished(ranks)) => vec!["finished".into(), json(&ranks)],
        Some(Event::Failed(failure)) => vec!["failed".into(), json(&failure), failure.render()],
    };
    java_strings(env, &fields)
}

fn within(millis: jlong) -> Deadline {
    Deadline::after(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
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
    java_string(env, &hubs::get(hub)?.logs(number("a rank", rank)?)?)
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

fn node_report<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    report: JByteArray<'local>,
) -> Call<()> {
    Ok(hubs::get(hub)?.node_report(&bytes(env, &report)?)?)
}

fn stage_ended<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    hub: jlong,
    attempt: jint,
    problem: JString<'local>,
) -> Call<()> {
    hubs::get(hub)?.stage_ended(number("an attempt", attempt)?, optional_string(env, &problem)?);
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

#[allow(clippy::too_many_arguments, reason = "the arguments of a Java method")]
fn run_node<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    job: JByteArray<'local>,
    payload: JByteArray<'local>,
    hub: JString<'local>,
    secret: JByteArray<'local>,
    partition: jint,
    attempt: jint,
    host: JString<'local>,
    gpus: JStringArray<'local>,
    program: JStringArray<'local>,
    pool: JStringArray<'local>,
    variables: JStringArray<'local>,
    work_dir: JString<'local>,
    guard: JString<'local>,
    node: JObject<'local>,
) -> Call<JByteArray<'local>> {
    collect_logs();
    let job = Job::from_json(&bytes(env, &job)?)?;
    let options = NodeOptions {
        payload: bytes(env, &payload)?,
        hub: HubAddress { address: string(env, &hub)?, job: job.id.clone(), token: token(env, &secret)? },
        job,
        partition: number("a partition", partition)?,
        attempt: number("an attempt", attempt)?,
        host: string(env, &host)?,
        gpus: strings(env, &gpus)?,
        program: strings(env, &program)?,
        pool: strings(env, &pool)?,
        shares_pool: false,
        env: pairs(env, &variables)?,
        work_dir: PathBuf::from(string(env, &work_dir)?),
        guard: PathBuf::from(string(env, &guard)?),
    };
    let mut jvm = JvmHost::new(env, &node);
    let outcome = run_node_of(&options, &mut jvm);
    match jvm.failed() {
        Some(error) => Err(error),
        None => java_bytes(env, &outcome?),
    }
}

fn prestart_pool<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
    guard: JString<'local>,
    program: JStringArray<'local>,
    variables: JStringArray<'local>,
) -> Call<()> {
    collect_logs();
    let warm = Settings::read(&pairs(env, &settings)?)?.warm;
    let (guard, program) = (PathBuf::from(string(env, &guard)?), strings(env, &program)?);
    phalanx_job::prestart_pool(&warm, guard, program, &pairs(env, &variables)?);
    Ok(())
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

/// For the test of JNI-1: nothing else here is known to panic.
#[allow(clippy::panic, reason = "what it is for")]
fn panic_for_test<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    message: JString<'local>,
) -> Call<()> {
    panic!("{}", string(env, &message)?)
}

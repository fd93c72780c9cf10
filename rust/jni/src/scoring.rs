//! A task's end of a model's process. Java writes and reads the memory of batches, as files.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use jni::Env;
use jni::jni_str;
use jni::objects::{JLongArray, JObject, JString};
use jni::sys::{jint, jlong};
use phalanx_job::settings::Settings;
use phalanx_job::{collect_logs, end_kept};
use phalanx_scoring::{Answer, Caller, Connection, Done, Start, Trouble};
use phalanx_types::{Error, ErrorKind, Result};

use crate::callbacks::Callbacks;
use crate::errors::{Call, ThrowException};
use crate::exports::{home_at, millis};
use crate::handles::{self, Handles};
use crate::methods::methods;
use crate::values::{JStringArray, java_signed_longs, java_string, java_strings, number, pairs, string};

methods! {
    predict_idle_millis(settings: [JString]) -> jlong;
    open_model(name: JString, told: JString, python: JString, home: JString, env: [JString]) -> jlong;
    rows_at_once(model: jlong, batch_size: jint) -> jlong;
    lay_out_batch(model: jlong, slot: jint, rows: jlong, bytes: jlong, asked: JString) -> [jlong];
    give_batch(model: jlong, slot: jint, task: dev.phalanx.spark.jni.ModelCallbacks) -> JString;
    take_batch(model: jlong, task: dev.phalanx.spark.jni.ModelCallbacks) -> [JString];
    close_model(model: jlong) -> void;
    end_models() -> void;
}

fn predict_idle_millis<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    settings: JStringArray<'local>,
) -> Call<jlong> {
    Ok(millis(Settings::read(&pairs(env, &settings)?)?.predict_idle))
}

/// A connection, and the memory that Java has opened or is about to.
struct Model {
    connection: Connection,
    batches: BTreeMap<u32, OwnedFd>,
    results: BTreeMap<u32, OwnedFd>,
}

static OPEN: Handles<Mutex<Model>> = Handles::new("the task has let go of its model");

/// Has a model for the length of a call.
fn with<T>(handle: jlong, call: impl FnOnce(&mut Model) -> Call<T>) -> Call<T> {
    let model = OPEN.get(handle)?;
    let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
    call(&mut model)
}

fn open_model<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    name: JString<'local>,
    told: JString<'local>,
    python: JString<'local>,
    home: JString<'local>,
    variables: JStringArray<'local>,
) -> Call<jlong> {
    collect_logs();
    let home = home_at(env, &home, &variables)?;
    let start = Start {
        name: string(env, &name)?,
        told: string(env, &told)?,
        env: home.env.into_iter().collect(),
        guard: home.guard,
        package: home.package,
        python: string(env, &python)?,
        shared: false,
    };
    let model =
        Model { connection: Connection::new(start), batches: BTreeMap::new(), results: BTreeMap::new() };
    let handle = handles::next();
    OPEN.add(handle, Arc::new(Mutex::new(model)));
    Ok(handle)
}

fn rows_at_once<'local>(
    _env: &mut Env<'local>,
    _this: JObject<'local>,
    model: jlong,
    batch_size: jint,
) -> Call<jlong> {
    let batch_size = size("rows", batch_size.into())?;
    with(model, |model| Ok(signed(model.connection.rows_at_once(batch_size))))
}

/// The column of a batch that Java writes: all its rows, as an IPC stream of Arrow's.
const ROWS: (&str, &str) = ("rows", "arrow");

fn lay_out_batch<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    model: jlong,
    slot: jint,
    rows: jlong,
    bytes: jlong,
    asked: JString<'local>,
) -> Call<JLongArray<'local>> {
    let slot = number("a batch", slot)?;
    let (rows, bytes) = (size("rows", rows)?, size("bytes", bytes)?);
    let asked = string(env, &asked)?;
    let told = with(model, |model| {
        let column = (ROWS.0.to_string(), ROWS.1.to_string(), vec![rows], bytes);
        let room = model.connection.lay_out(slot, rows, vec![column], asked)?;
        let is_new = room.is_new;
        if is_new {
            model.batches.insert(slot, room.file);
        }
        let at = room.at.first().copied().unwrap_or_default();
        Ok([descriptor(&model.batches, slot)?, i64::from(is_new), signed(at)])
    })?;
    java_signed_longs(env, &told)
}

fn size(what: &str, value: jlong) -> Call<u64> {
    let invalid = |_| Error::new(ErrorKind::Invalid, format!("a batch can't have {value} {what}"));
    Ok(u64::try_from(value).map_err(invalid)?)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn descriptor(of: &BTreeMap<u32, OwnedFd>, slot: u32) -> Call<i64> {
    let file = of.get(&slot).ok_or_else(|| Error::new(ErrorKind::Protocol, "a batch has no memory"))?;
    Ok(RawFd::into(file.as_raw_fd()))
}

fn give_batch<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    model: jlong,
    slot: jint,
    task: JObject<'local>,
) -> Call<JString<'local>> {
    let slot = number("a batch", slot)?;
    let trouble =
        asked(env, &task, |caller| with(model, |model| Ok(model.connection.give(slot, caller)?)))?;
    match trouble {
        None => Ok(JString::null()),
        Some(Trouble { error, traceback }) => java_string(env, &format!("{error}\n\n{traceback}")),
    }
}

fn take_batch<'local>(
    env: &mut Env<'local>,
    _this: JObject<'local>,
    model: jlong,
    task: JObject<'local>,
) -> Call<JStringArray<'local>> {
    let told = asked(env, &task, |caller| {
        with(model, |model| {
            Ok(match model.connection.take(caller)? {
                Answer::Done(Done { batch, results, took }) => {
                    let is_new = results.is_some();
                    if let Some(results) = results {
                        model.results.insert(batch.slot, results.file);
                    }
                    let file = descriptor(&model.results, batch.slot)?;
                    let (at, bytes) =
                        batch.columns.first().map_or((0, 0), |column| (column.at, column.bytes));
                    let numbers = [file, i64::from(is_new), signed(at), signed(bytes)];
                    let mut told = vec!["done".to_string(), took.as_nanos().to_string()];
                    told.extend(numbers.iter().map(ToString::to_string));
                    told
                }
                Answer::Refused(trouble) => vec!["refused".into(), trouble.error, trouble.traceback],
                Answer::NoModel(trouble) => vec!["no model".into(), trouble.error, trouble.traceback],
            })
        })
    })?;
    java_strings(env, &told)
}

fn close_model<'local>(_env: &mut Env<'local>, _this: JObject<'local>, model: jlong) -> Call<()> {
    OPEN.remove(model);
    Ok(())
}

fn end_models<'local>(_env: &mut Env<'local>, _this: JObject<'local>) -> Call<()> {
    end_kept();
    Ok(())
}

/// Waits for a model on a task's behalf; what the task's Java code threw meanwhile comes first.
fn asked<'local, T>(
    env: &mut Env<'local>,
    task: &JObject<'local>,
    ask: impl FnOnce(&mut JvmTask<'_, 'local>) -> Call<T>,
) -> Call<T> {
    collect_logs();
    let mut caller = JvmTask(Callbacks::new(env, task));
    let answer = ask(&mut caller);
    match caller.0.failed() {
        Some(thrown) => Err(thrown),
        None => answer,
    }
}

/// A task of Spark's in this JVM.
struct JvmTask<'env, 'local>(Callbacks<'env, 'local>);

impl Caller for JvmTask<'_, '_> {
    fn is_wanted(&mut self) -> bool {
        self.0.flag(jni_str!("isWanted")).unwrap_or(false)
    }

    fn model(&mut self) -> Result<OwnedFd> {
        let path = self.0.text(jni_str!("model"));
        let path = path.flatten().ok_or_else(|| Error::new(ErrorKind::Invalid, "the model can't be read"))?;
        File::open(path).map(OwnedFd::from).map_err(|error| Error::io("open the model", &error))
    }

    fn output(&mut self) -> Result<OwnedFd> {
        std::io::stderr().as_fd().try_clone_to_owned().map_err(|error| Error::io("keep stderr", &error))
    }
}

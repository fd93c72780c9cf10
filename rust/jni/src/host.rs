//! Rust calls Java: the executor that a node runs in, through the interface `dev.phalanx.spark.NodeHost`.

use jni::objects::{JObject, JString, JThrowable, JValue};
use jni::refs::Global;
use jni::signature::MethodSignature;
use jni::strings::JNIStr;
use jni::{Env, jni_sig, jni_str};
use phalanx_job::{NodeHost, Observation};
use phalanx_types::{Error, ErrorKind, Result};

use crate::errors::{Call, CallError};
use crate::values::{self, JStringArray};

/// How many references one call needs at most, but for `allGather`'s, which are given back one by one.
const REFERENCES: usize = 16;

/// A `NodeHost` of the JVM, for the length of one call from it, on that call's thread.
pub(crate) struct JvmHost<'env, 'local> {
    env: &'env mut Env<'local>,
    host: &'env JObject<'local>,
    /// What the first call that failed failed with.
    failed: Option<CallError>,
}

impl<'env, 'local> JvmHost<'env, 'local> {
    pub(crate) fn new(env: &'env mut Env<'local>, host: &'env JObject<'local>) -> Self {
        JvmHost { env, host, failed: None }
    }

    /// What Java threw, or why it could not be called, if either happened.
    pub(crate) fn failed(self) -> Option<CallError> {
        self.failed
    }

    /// Calls a method of the host and reads what it returned. Its exception is kept, and is no longer pending.
    fn call<T>(
        &mut self,
        name: &JNIStr,
        signature: &MethodSignature<'_, '_>,
        text: Option<&str>,
        numbers: &[JValue<'_>],
        read: impl FnOnce(&mut Env<'_>, JObject<'_>) -> Call<T>,
    ) -> Option<T> {
        let host = self.host;
        let outcome = self.env.with_local_frame(REFERENCES, |env| -> Call<T> {
            let text = text.map(|text| env.new_string(text)).transpose()?;
            let mut arguments: Vec<JValue<'_>> = text.iter().map(|t| JValue::Object(t)).collect();
            arguments.extend_from_slice(numbers);
            let returned = match env.call_method(host, name, signature, &arguments) {
                Ok(returned) => returned,
                Err(jni::errors::Error::JavaException) => return Err(pending(env)),
                Err(e) => return Err(e.into()),
            };
            let object = returned.into_object().unwrap_or(JObject::null());
            read(env, object)
        });
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }
}

/// The pending exception, taken.
fn pending(env: &mut Env<'_>) -> CallError {
    let Some(throwable) = env.exception_occurred() else {
        return jni::errors::Error::JavaException.into();
    };
    env.exception_clear();
    let kept: jni::errors::Result<Global<JThrowable<'static>>> = env.new_global_ref(&throwable);
    kept.map_or_else(CallError::Jni, CallError::Thrown)
}

fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn count(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl NodeHost for JvmHost<'_, '_> {
    fn interrupted(&mut self) -> Option<String> {
        if self.failed.is_none() {
            let reason =
                self.call(jni_str!("interrupted"), &jni_sig!(() -> JString), None, &[], |env, object| {
                    let text = env.cast_local::<JString<'_>>(object)?;
                    values::optional_string(env, &text)
                });
            if let Some(reason) = reason {
                return reason;
            }
        }
        Some("its executor's code failed".into())
    }

    fn all_gather(&mut self, text: &str) -> Result<Vec<String>> {
        let all = self.call(
            jni_str!("allGather"),
            &jni_sig!((text: JString) -> JString[]),
            Some(text),
            &[],
            |env, object| {
                let array = env.cast_local::<JStringArray<'_>>(object)?;
                values::strings(env, &array)
            },
        );
        all.ok_or_else(|| Error::new(ErrorKind::Unreachable, "the tasks could not meet through Spark"))
    }

    fn observe(&mut self, what: Observation) {
        let no_value = |_: &mut Env<'_>, _: JObject<'_>| Ok(());
        let number = jni_sig!((value: jlong) -> void);
        match what {
            Observation::Joined(after) => {
                let after = [JValue::Long(micros(after))];
                self.call(jni_str!("joined"), &number, None, &after, no_value);
            }
            Observation::RankStarted(after) => {
                let after = [JValue::Long(micros(after))];
                self.call(jni_str!("rankStarted"), &number, None, &after, no_value);
            }
            Observation::RankRestarted => {
                self.call(jni_str!("rankRestarted"), &jni_sig!(() -> void), None, &[], no_value);
            }
            Observation::RankEnded { failed } => {
                let failed = [JValue::Bool(failed)];
                let flag = jni_sig!((failed: jboolean) -> void);
                self.call(jni_str!("rankEnded"), &flag, None, &failed, no_value);
            }
            Observation::Output { lines, bytes } => {
                let written = [JValue::Long(count(lines)), JValue::Long(count(bytes))];
                let two = jni_sig!((lines: jlong, bytes: jlong) -> void);
                self.call(jni_str!("output"), &two, None, &written, no_value);
            }
        }
    }
}

//! Rust calls Java: what waits in a native method, through an interface; and the executor that a node runs in,
//! `dev.phalanx.spark.jni.NodeCallbacks`.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use jni::objects::{JLongArray, JObject, JString, JThrowable, JValue};
use jni::refs::Global;
use jni::signature::MethodSignature;
use jni::strings::JNIStr;
use jni::{Env, jni_sig, jni_str};
use phalanx_job::{MetricChange, NodeCallbacks};
use phalanx_types::{Error, ErrorKind, Result};

use crate::errors::{Call, CallError};
use crate::values;

/// How many references one call needs at most.
const REFERENCES: usize = 16;

/// An object of the JVM, for the length of one call from it, on that call's thread.
pub(crate) struct Callbacks<'env, 'local> {
    env: &'env mut Env<'local>,
    callbacks: &'env JObject<'local>,
    /// What the first call that failed failed with.
    failed: Option<CallError>,
}

impl<'env, 'local> Callbacks<'env, 'local> {
    pub(crate) fn new(env: &'env mut Env<'local>, callbacks: &'env JObject<'local>) -> Self {
        Callbacks { env, callbacks, failed: None }
    }

    /// What Java threw, or why it could not be called, if either happened.
    pub(crate) fn failed(self) -> Option<CallError> {
        self.failed
    }

    /// Calls a method, with an argument or none, and reads what it returned. Its exception is kept, and is no longer
    /// pending.
    fn call<T>(
        &mut self,
        name: &JNIStr,
        signature: &MethodSignature<'_, '_>,
        argument: impl for<'a> FnOnce(&mut Env<'a>) -> Call<Option<JObject<'a>>>,
        read: impl FnOnce(&mut Env<'_>, JObject<'_>) -> Call<T>,
    ) -> Option<T> {
        let callbacks = self.callbacks;
        let outcome = self.env.with_local_frame(REFERENCES, |env| -> Call<T> {
            let argument = argument(env)?;
            let arguments: Vec<JValue<'_>> = argument.iter().map(JValue::Object).collect();
            let returned = match env.call_method(callbacks, name, signature, &arguments) {
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

    /// Calls a method that says yes or no.
    pub(crate) fn flag(&mut self, name: &JNIStr) -> Option<bool> {
        self.call(
            name,
            &jni_sig!(() -> java.lang.Boolean),
            |_| Ok(None),
            |env, object| {
                Ok(env.call_method(object, jni_str!("booleanValue"), &jni_sig!(() -> jboolean), &[])?.z()?)
            },
        )
    }

    /// Calls a method that returns a text, or null.
    pub(crate) fn text(&mut self, name: &JNIStr) -> Option<Option<String>> {
        self.call(
            name,
            &jni_sig!(() -> JString),
            |_| Ok(None),
            |env, object| {
                let text = env.cast_local::<JString<'_>>(object)?;
                values::optional_string(env, &text)
            },
        )
    }
}

/// A `NodeCallbacks` of the JVM.
pub(crate) struct JvmCallbacks<'env, 'local>(Callbacks<'env, 'local>);

impl<'env, 'local> JvmCallbacks<'env, 'local> {
    pub(crate) fn new(env: &'env mut Env<'local>, callbacks: &'env JObject<'local>) -> Self {
        JvmCallbacks(Callbacks::new(env, callbacks))
    }

    /// As [`Callbacks::failed`].
    pub(crate) fn failed(self) -> Option<CallError> {
        self.0.failed()
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

impl NodeCallbacks for JvmCallbacks<'_, '_> {
    fn interrupted(&mut self) -> Option<String> {
        if self.0.failed.is_none() {
            let reason = self.0.text(jni_str!("interrupted"));
            if let Some(reason) = reason {
                return reason;
            }
        }
        Some("its executor's code failed".into())
    }

    fn observed(&mut self, changes: &[MetricChange]) {
        let packed: Vec<i64> = changes
            .iter()
            .flat_map(|(metric, by)| [i64::try_from(metric.number()).unwrap_or(i64::MAX), *by])
            .collect();
        self.0.call(
            jni_str!("observed"),
            &jni_sig!((changes: [jlong]) -> void),
            |env| {
                let array = JLongArray::new(env, packed.len())?;
                array.set_region(env, 0, &packed)?;
                Ok(Some(array.into()))
            },
            |_, _| Ok(()),
        );
    }

    fn executor_log(&mut self) -> Option<OwnedFd> {
        let collected = self.0.flag(jni_str!("stdoutIsExecutors"));
        // One that can't be had is no reason to fail a training.
        collected.filter(|is| *is).and_then(|_| std::io::stdout().as_fd().try_clone_to_owned().ok())
    }

    fn copy_files(&mut self, files: &[PathBuf], folder: &str) -> Result<()> {
        let mut texts: Vec<String> = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
        texts.insert(0, folder.into());
        let problem = self.0.call(
            jni_str!("copyFiles"),
            &jni_sig!((folder_and_files: JString[]) -> JString),
            |env| Ok(Some(values::java_strings(env, &texts)?.into())),
            |env, object| {
                let text = env.cast_local::<JString<'_>>(object)?;
                values::optional_string(env, &text)
            },
        );
        match problem.flatten() {
            None => Ok(()),
            Some(problem) => Err(Error::new(ErrorKind::Io, problem)),
        }
    }
}

//! The one policy by which errors and panics of the core become Java exceptions.
//!
//! `tests/contract/errors.json` says which class belongs to which kind (TYPES-3).

use std::any::Any;

use jni::errors::ErrorPolicy;
use jni::objects::{JThrowable, JValue};
use jni::refs::Global;
use jni::strings::JNIString;
use jni::{Env, jni_sig, jni_str};
use phalanx_types::{Error, ErrorClass, ErrorKind, panic_text};

/// What a call of the core can end in, besides a value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// An error of the core.
    #[error("{0}")]
    Core(#[from] Error),
    /// The JVM refused a call of ours.
    #[error("a call into the JVM failed: {0}")]
    Jni(#[from] jni::errors::Error),
    /// Java code that was called from here threw this.
    #[error("the JVM's code threw an exception")]
    Thrown(Global<JThrowable<'static>>),
}

/// What an export returns before the policy.
pub(crate) type Call<T> = Result<T, CallError>;

/// Throws errors as exceptions by their kind, and panics.
pub(crate) struct ThrowException;

impl<T: Default> ErrorPolicy<T, CallError> for ThrowException {
    type Captures<'local: 'call, 'call> = ();

    fn on_error<'local: 'call, 'call>(
        env: &mut Env<'local>,
        _captures: &mut Self::Captures<'local, 'call>,
        error: CallError,
    ) -> jni::errors::Result<T> {
        if env.exception_check() {
            return Ok(T::default());
        }
        let (kind, message) = match error {
            CallError::Thrown(throwable) => return thrown(env.throw(&throwable)),
            CallError::Core(error) => (error.kind(), error.to_string()),
            CallError::Jni(error) => (ErrorKind::Invalid, error.to_string()),
        };
        let class = match kind.class() {
            ErrorClass::Value | ErrorClass::Type => jni_str!("java/lang/IllegalArgumentException"),
            ErrorClass::MissingFile => jni_str!("java/io/FileNotFoundException"),
            ErrorClass::Directory => jni_str!("java/io/IOException"),
            ErrorClass::State => jni_str!("java/lang/IllegalStateException"),
            ErrorClass::Core => return throw_training_exception(env, kind.name(), &message),
        };
        thrown(env.throw_new(class, JNIString::from(message)))
    }

    fn on_panic<'local: 'call, 'call>(
        env: &mut Env<'local>,
        _captures: &mut Self::Captures<'local, 'call>,
        panic: Box<dyn Any + Send + 'static>,
    ) -> jni::errors::Result<T> {
        if env.exception_check() {
            env.exception_clear();
        }
        throw_training_exception(env, "panic", &panic_text(panic.as_ref()))
    }
}

fn throw_training_exception<T: Default>(
    env: &mut Env<'_>,
    kind: &str,
    message: &str,
) -> jni::errors::Result<T> {
    let class = env.find_class(jni_str!("dev/phalanx/spark/TrainingException"))?;
    let (kind, message) = (env.new_string(kind)?, env.new_string(message)?);
    let arguments = [JValue::Object(&kind), JValue::Object(&message)];
    let exception = env.new_object(class, jni_sig!((kind: JString, message: JString)), &arguments)?;
    let exception = env.cast_local::<JThrowable<'_>>(exception)?;
    thrown(env.throw(&exception))
}

/// That an exception is pending now is what was wanted, though the crate calls it an error.
fn thrown<T: Default>(outcome: jni::errors::Result<()>) -> jni::errors::Result<T> {
    match outcome {
        Ok(()) | Err(jni::errors::Error::JavaException) => Ok(T::default()),
        Err(e) => Err(e),
    }
}

//! How a function becomes a native method of `dev.phalanx.spark.jni.Native`.

/// Exports each function as a method of `Native`, its types checked, under the one error policy,
/// `errors::ThrowException`, which has to be in scope.
macro_rules! methods {
    ($($name:ident $arguments:tt -> $returned:tt;)*) => {
        $(const _: jni::NativeMethod = jni::native_method! {
            java_type = "dev.phalanx.spark.jni.Native",
            error_policy = ThrowException,
            extern fn $name $arguments -> $returned,
        };)*
    };
}

pub(crate) use methods;

//! Torch's errors as those of this project.

use phalanx_types::{Error, ErrorKind};
use tch::TchError;

/// Turns an error of torch while `doing` something into one with a kind: what the operating system refused is
/// [`ErrorKind::Io`], anything else [`ErrorKind::Invalid`].
///
/// ```
/// use phalanx_torch::torch_error;
/// use tch::{Kind, Tensor};
///
/// let tensor = Tensor::from_slice(&[1.0f32, 2.0]);
/// let error = tensor.f_view([3]).map_err(torch_error("reshape the batch")).unwrap_err();
/// assert!(error.to_string().starts_with("can't reshape the batch: "));
/// ```
pub fn torch_error(doing: &str) -> impl FnOnce(TchError) -> Error + '_ {
    move |error| match error {
        TchError::Io(error) => Error::io(doing, &error),
        error => {
            // Torch appends the C++ stack, hundreds of lines, of which the first says what happened.
            let text = error.to_string();
            let text = text.split("\nException raised from ").next().unwrap_or_default().trim();
            Error::new(ErrorKind::Invalid, format!("can't {doing}: {text}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torchs_errors_have_a_kind_and_no_stack_of_cpp() {
        let missing = TchError::Io(std::io::ErrorKind::NotFound.into());
        assert_eq!(torch_error("read x")(missing).kind(), ErrorKind::Io);
        let torch =
            TchError::Torch("size mismatch\nException raised from f at a.cpp:1\nframe #0: ...".into());
        let error = torch_error("add")(torch);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), "can't add: Internal torch error: size mismatch");
    }
}

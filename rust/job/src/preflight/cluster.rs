//! What a cluster has to be like before a distributed run is submitted to it.

use phalanx_types::Result;

use super::conf::Conf;
use super::encryption::plain;
use super::gang;
use crate::settings::Settings;

/// Whether a distributed run may start on this cluster; `conf` is what is set of [`crate::settings::keys`]. The answer
/// is a warning, if there is one to log.
///
/// # Errors
/// [`phalanx_types::ErrorKind::State`] where its tasks can't be on this cluster what they are to be, and as
/// [`Settings::read`].
pub fn may_start(conf: &Conf) -> Result<Option<String>> {
    let settings = Settings::read(conf)?;
    gang::check(&settings.policy, conf)?;
    Ok(plain(settings.encryption, settings.allow_plain_gradients, settings.policy.encryption, conf))
}

//! Whether what nodes and ranks of different hosts send one another is encrypted: as Spark's own RPC, or as it is
//! wanted.

use phalanx_types::{Encryption, Error, ErrorKind, Result};

use super::conf::{Conf, is_local, is_true, master};

/// The setting that allows plain gradients by pyspark's name.
pub const SSL_OVERRIDE: &str = "pytorch.spark.distributor.ignoreSsl";

const AUTHENTICATE: &str = "spark.authenticate";
const NETWORK_CRYPTO: &str = "spark.network.crypto.enabled";
const SASL_ENCRYPTION: &str = "spark.authenticate.enableSaslEncryption";
const SSL_RPC: &str = "spark.ssl.rpc.enabled";
const SSL: &str = "spark.ssl.enabled";

/// What of Spark's configuration the settings of encryption follow.
pub const ENCRYPTION_KEYS: [&str; 6] =
    [AUTHENTICATE, NETWORK_CRYPTO, SASL_ENCRYPTION, SSL_RPC, SSL, SSL_OVERRIDE];

/// What is wanted: `spark.phalanx.encryption`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncryptionWish {
    /// As Spark's RPC.
    Auto,
    /// In any case.
    Required,
    /// In no case.
    Off,
}

impl EncryptionWish {
    /// By its name in the setting.
    pub(crate) fn named(name: &str) -> EncryptionWish {
        match name {
            "required" => EncryptionWish::Required,
            "off" => EncryptionWish::Off,
            _ => EncryptionWish::Auto,
        }
    }
}

/// Whether Spark encrypts its RPC, by which a job's token gets to its tasks.
///
/// With AES or SASL it does only if it also authenticates: Spark refuses to start where it doesn't. `spark.ssl.enabled`
/// is about web pages, and `spark.ssl.rpc.enabled` doesn't follow it (`SecurityManager.scala`).
fn encrypts_rpc(conf: &Conf) -> bool {
    let by_secret = is_true(conf, NETWORK_CRYPTO) || is_true(conf, SASL_ENCRYPTION);
    (by_secret && is_true(conf, AUTHENTICATE)) || is_true(conf, SSL_RPC)
}

/// Whether gradients may be plain by pyspark's setting.
pub(crate) fn ignores_ssl(conf: &Conf) -> bool {
    is_true(conf, SSL_OVERRIDE)
}

/// What follows from what is wanted and from Spark's configuration.
///
/// # Errors
/// [`ErrorKind::Invalid`] where encryption is required and plain gradients are allowed.
pub(crate) fn encryption(wish: EncryptionWish, plain_gradients: bool, conf: &Conf) -> Result<Encryption> {
    match wish {
        EncryptionWish::Required if plain_gradients => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "spark.phalanx.encryption is 'required', but spark.phalanx.encryption.allowPlainGradients (or \
                 {SSL_OVERRIDE}) is 'true', which lets gloo and NCCL send gradients unencrypted; set only one of them"
            ),
        )),
        EncryptionWish::Required => Ok(Encryption::On { plain_gradients: false }),
        EncryptionWish::Auto if encrypts_rpc(conf) => Ok(Encryption::On { plain_gradients }),
        EncryptionWish::Auto | EncryptionWish::Off => Ok(Encryption::Off),
    }
}

/// What to warn of before a distributed run: that its token travels in plain, or that all of it does, although
/// `spark.ssl.enabled` looks as if it were not so.
pub(super) fn plain(
    wish: EncryptionWish,
    plain_gradients: bool,
    decided: Encryption,
    conf: &Conf,
) -> Option<String> {
    if is_local(master(conf)) {
        return None;
    }
    if decided.is_on() && !encrypts_rpc(conf) {
        return Some(
            "This run encrypts what its ranks send each other, but Spark's RPC, which carries the job's \
             token to the tasks, is not encrypted: anyone who reads the token can join the job. Set \
             spark.authenticate and spark.network.crypto.enabled, or spark.ssl.rpc.enabled, to 'true'."
                .into(),
        );
    }
    let is_unsaid = wish == EncryptionWish::Auto && !plain_gradients && !decided.is_on();
    (is_unsaid && is_true(conf, SSL)).then(|| {
        "spark.ssl.enabled encrypts only Spark's web pages, and this run's ranks send their data to each \
         other unencrypted: set spark.ssl.rpc.enabled to 'true', or spark.phalanx.encryption to 'required', \
         to encrypt it, or spark.phalanx.encryption to 'off' if it may be unencrypted."
            .into()
    })
}

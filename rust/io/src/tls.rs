//! TLS 1.3 between processes of one application, without certificates of anybody: one end of a connection as a machine
//! that takes bytes and gives bytes, and the key that a process has for itself.
//!
//! Does no I/O and knows no socket: who owns one moves the bytes, in an event loop or a thread.
//!
//! - IO-8 (pinned): a client speaks with the peer whose key it was told, and with nobody else. Keys are raw (RFC
//!   7250): no certificate authority, name or date is believed.
//! - IO-9 (no-other-way): TLS 1.3 only, one set of algorithms, no resumption and no early data, so that nothing can be
//!   talked down or played again.
//! - IO-10 (one-connection): [`TlsChannel::binding`] is the same at both ends of one connection and on no other
//!   (RFC 9266), so that a proof over it can't be passed on by somebody in the middle.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use phalanx_types::{Error, ErrorKind, Result};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group, sign};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    InvalidMessage, ServerConfig, ServerConnection, SignatureScheme, version,
};

/// A process's public key as others are told it (a SubjectPublicKeyInfo).
pub type PublicKey = Vec<u8>;

/// What both ends make of their connection's secrets.
const BINDING_LABEL: &str = "EXPORTER-Channel-Binding";

/// A process's own key pair. It is made when it is needed, never written down, and gone with the process.
#[derive(Debug)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    public: PublicKey,
}

impl Identity {
    /// A new one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system has no randomness.
    pub fn new() -> Result<Identity> {
        let failed = |e: &dyn std::fmt::Display| Error::new(ErrorKind::Io, format!("can't make a key: {e}"));
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|e| failed(&e))?;
        let key = sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_ref())).map_err(|e| failed(&e))?;
        let public = key.public_key().ok_or_else(|| failed(&"it has no public half"))?.to_vec();
        let shown = CertificateDer::from(public.clone());
        Ok(Identity { key: Arc::new(CertifiedKey::new(vec![shown], key)), public })
    }

    /// Its public half.
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }
}

/// The end that others connect to.
#[derive(Debug, Clone)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
}

impl TlsServer {
    /// Shows `identity`, and speaks `protocol` above TLS.
    ///
    /// # Errors
    /// None in practice.
    pub fn new(identity: &Identity, protocol: &str) -> Result<TlsServer> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(unexpected)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&identity.key))));
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(TlsServer { config: Arc::new(config) })
    }

    /// This end of a connection that was accepted.
    ///
    /// # Errors
    /// None in practice.
    pub fn accept(&self) -> Result<TlsChannel> {
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(unexpected)?;
        Ok(TlsChannel::of(tls.into()))
    }
}

/// One end of a connection, without its socket.
///
/// ```
/// use phalanx_io::{Identity, TlsChannel, TlsServer};
///
/// # fn main() -> phalanx_types::Result<()> {
/// let identity = Identity::new()?;
/// let mut server = TlsServer::new(&identity, "example/1")?.accept()?;
/// let mut client = TlsChannel::connect(identity.public_key(), "example/1")?;
/// let mut heard = Vec::new();
/// while !client.is_ready() || !server.is_ready() {
///     let (mut there, mut back) = (Vec::new(), Vec::new());
///     client.drain(&mut there)?;
///     server.receive(&there, |_| {})?;
///     server.drain(&mut back)?;
///     client.receive(&back, |_| {})?;
/// }
/// let mut wire = Vec::new();
/// client.send(b"hello", &mut wire)?;
/// server.receive(&wire, |said| heard.extend_from_slice(said))?;
/// assert_eq!(heard, b"hello");
/// assert_eq!(client.binding()?, server.binding()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TlsChannel {
    tls: Connection,
    has_ended: bool,
}

impl TlsChannel {
    /// The end that connects: to the process with the key `peer` (IO-8), which speaks `protocol` above TLS.
    ///
    /// # Errors
    /// None in practice.
    pub fn connect(peer: &PublicKey, protocol: &str) -> Result<TlsChannel> {
        let provider = Arc::new(provider());
        let pinned = Arc::new(Pinned { key: peer.clone(), provider: Arc::clone(&provider) });
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .map_err(unexpected)?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        // The key says who the peer is; a name is told to nobody.
        let nobody = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let tls = ClientConnection::new(Arc::new(config), nobody).map_err(unexpected)?;
        Ok(TlsChannel::of(tls.into()))
    }

    fn of(mut tls: Connection) -> TlsChannel {
        // Whoever owns the socket bounds what waits for it.
        tls.set_buffer_limit(None);
        TlsChannel { tls, has_ended: false }
    }

    /// Takes bytes from the peer; what it said is handed to `said` in pieces, up to where an error is. Afterwards there
    /// may be something to [drain](TlsChannel::drain), after an error, too: it tells the peer.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if it is not the peer that was asked for, [`ErrorKind::Protocol`] if it doesn't speak TLS
    /// or speaks another protocol above it, [`ErrorKind::Closed`] if it broke off or its bytes were changed on the way.
    pub fn receive(&mut self, mut came: &[u8], mut said: impl FnMut(&[u8])) -> Result<()> {
        while !came.is_empty() {
            let taken = self.tls.read_tls(&mut came).map_err(|e| changed(&e))?;
            if taken == 0 {
                return Err(Error::new(ErrorKind::Closed, "it closed the connection"));
            }
            let state = self.tls.process_new_packets();
            let mut reader = self.tls.reader();
            // When there is no more of it this is an error, "would block".
            while let Ok(piece) = reader.fill_buf()
                && !piece.is_empty()
            {
                said(piece);
                let length = piece.len();
                reader.consume(length);
            }
            let state = state.map_err(|e| explain(&e, self.tls.protocol_version().is_none()))?;
            self.has_ended |= state.peer_has_closed();
        }
        Ok(())
    }

    /// Appends to `wire` what the peer is to get so that it hears `bytes`. Only when the channel
    /// [is ready](TlsChannel::is_ready).
    ///
    /// # Errors
    /// None in practice.
    pub fn send(&mut self, bytes: &[u8], wire: &mut Vec<u8>) -> Result<()> {
        self.queue(bytes)?;
        self.drain(wire)
    }

    /// Encrypts `bytes`, and keeps what the peer is to get for [`TlsChannel::flush`].
    ///
    /// # Errors
    /// None in practice.
    pub fn queue(&mut self, bytes: &[u8]) -> Result<()> {
        self.tls.writer().write_all(bytes).map_err(|e| Error::io("encrypt", &e))
    }

    /// Hands what is kept for the peer to `wire`, without a copy.
    ///
    /// # Errors
    /// What `wire` says. If that is "would block", the rest is kept.
    pub fn flush(&mut self, wire: &mut impl std::io::Write) -> std::io::Result<()> {
        while self.tls.wants_write() {
            if self.tls.write_tls(wire)? == 0 {
                return Err(std::io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Appends to `wire` what TLS itself has to say: its handshake, or why it gives up.
    ///
    /// # Errors
    /// None in practice.
    pub fn drain(&mut self, wire: &mut Vec<u8>) -> Result<()> {
        self.flush(wire).map_err(|e| Error::io("encrypt", &e))
    }

    /// Appends to `wire` that this end has said everything. It goes on hearing.
    ///
    /// # Errors
    /// None in practice.
    pub fn end(&mut self, wire: &mut Vec<u8>) -> Result<()> {
        self.tls.send_close_notify();
        self.drain(wire)
    }

    /// Whether the peer has said that it has said everything. Bytes that just cease say nothing: somebody may have cut
    /// them off.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the handshake is over.
    pub fn is_ready(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// What both ends of this connection know, and nobody else does (IO-10).
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] before the channel is ready.
    pub fn binding(&self) -> Result<[u8; 32]> {
        self.tls
            .export_keying_material([0; 32], BINDING_LABEL.as_bytes(), None)
            .map_err(|e| Error::new(ErrorKind::Protocol, format!("there is no connection to bind to: {e}")))
    }
}

/// What both ends speak (IO-9).
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519],
        ..default_provider()
    }
}

fn unexpected(e: rustls::Error) -> Error {
    Error::new(ErrorKind::Protocol, format!("TLS can't begin: {e}"))
}

fn changed(e: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Closed, format!("its bytes were cut off or changed on the way: {e}"))
}

/// What an error of TLS means for people. `first`: it is about the first that came.
fn explain(e: &rustls::Error, first: bool) -> Error {
    use rustls::Error::{AlertReceived, InvalidCertificate, NoApplicationProtocol};
    match e {
        InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            Error::new(ErrorKind::Refused, "its key is not the expected one")
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) if first => {
            Error::new(ErrorKind::Protocol, "it doesn't speak TLS")
        }
        NoApplicationProtocol | AlertReceived(AlertDescription::NoApplicationProtocol) => {
            Error::new(ErrorKind::Protocol, "it speaks another version")
        }
        AlertReceived(alert) => Error::new(ErrorKind::Closed, format!("it aborted TLS: {alert:?}")),
        other => changed(other),
    }
}

/// Believes one key.
#[derive(Debug)]
struct Pinned {
    key: PublicKey,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match **shown == *self.key {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PROTOCOL: &str = "test/1";

    /// Two ends that were connected over a wire which `tampers` with what the client sends.
    fn connect(
        mut client: TlsChannel,
        mut server: TlsChannel,
        mut tampers: impl FnMut(&mut Vec<u8>),
    ) -> Result<(TlsChannel, TlsChannel)> {
        while !client.is_ready() || !server.is_ready() {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            client.drain(&mut there)?;
            tampers(&mut there);
            let accepted = server.receive(&there, |_| {});
            server.drain(&mut back)?;
            client.receive(&back, |_| {})?;
            accepted?;
            if there.is_empty() && back.is_empty() {
                return Err(Error::new(ErrorKind::Timeout, "both wait for the other"));
            }
        }
        Ok((client, server))
    }

    fn ends() -> (TlsChannel, TlsChannel) {
        let identity = Identity::new().unwrap();
        let client = TlsChannel::connect(identity.public_key(), PROTOCOL).unwrap();
        connect(client, TlsServer::new(&identity, PROTOCOL).unwrap().accept().unwrap(), |_| {}).unwrap()
    }

    #[test]
    fn only_the_peer_with_the_key_that_was_asked_for_is_spoken_with() {
        let (asked_for, other) = (Identity::new().unwrap(), Identity::new().unwrap());
        let client = TlsChannel::connect(asked_for.public_key(), PROTOCOL).unwrap();
        let server = TlsServer::new(&other, PROTOCOL).unwrap().accept().unwrap();
        let error = connect(client, server, |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "IO-8: {error}");
        // Who shows the right key without having it can't sign.
        let forged = Identity {
            key: Arc::new(CertifiedKey::new(
                vec![CertificateDer::from(asked_for.public.clone())],
                other.key.key.clone(),
            )),
            public: asked_for.public.clone(),
        };
        let client = TlsChannel::connect(asked_for.public_key(), PROTOCOL).unwrap();
        let server = TlsServer::new(&forged, PROTOCOL).unwrap().accept().unwrap();
        assert!(connect(client, server, |_| {}).is_err(), "IO-8");
    }

    #[test]
    fn another_protocol_and_what_is_no_tls_are_told_apart() {
        let identity = Identity::new().unwrap();
        let server = || TlsServer::new(&identity, PROTOCOL).unwrap().accept().unwrap();
        let client = TlsChannel::connect(identity.public_key(), "test/2").unwrap();
        let error = connect(client, server(), |_| {}).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Protocol, "it speaks another version")
        );
        for plain in [&b"GET / HTTP/1.1\r\n"[..], &[0x7f; 64], b"EHLO example\r\n"] {
            let error = server().receive(plain, |_| {}).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (ErrorKind::Protocol, "it doesn't speak TLS")
            );
        }
    }

    #[test]
    fn nothing_is_talked_down_and_no_connection_goes_on_from_another() {
        let identity = Identity::new().unwrap();
        for _ in 0..2 {
            let client = TlsChannel::connect(identity.public_key(), PROTOCOL).unwrap();
            let server = TlsServer::new(&identity, PROTOCOL).unwrap().accept().unwrap();
            let (client, mut server) = connect(client, server, |_| {}).unwrap();
            assert_eq!(client.tls.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3), "IO-9");
            assert_eq!(client.tls.handshake_kind(), Some(rustls::HandshakeKind::Full), "IO-9");
            let mut tickets = Vec::new();
            server.drain(&mut tickets).unwrap();
            assert_eq!(tickets, b"", "IO-9");
        }
    }

    #[test]
    fn a_binding_belongs_to_one_connection() {
        let ((client, server), (another, _)) = (ends(), ends());
        assert_eq!(client.binding().unwrap(), server.binding().unwrap(), "IO-10");
        assert_ne!(client.binding().unwrap(), another.binding().unwrap(), "IO-10");
        let early = TlsChannel::connect(Identity::new().unwrap().public_key(), PROTOCOL).unwrap();
        assert_eq!(early.binding().unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn bytes_of_any_number_arrive_in_pieces_of_any_size() {
        let (mut client, mut server) = ends();
        let said: Vec<u8> = (0..300_000_u32).map(|i| (i % 251) as u8).collect();
        for piece_bytes in [1, 4096, 1 << 20] {
            let (mut wire, mut heard) = (Vec::new(), Vec::new());
            let some = &said[..if piece_bytes == 1 { 20_000 } else { said.len() }];
            client.send(some, &mut wire).unwrap();
            for piece in wire.chunks(piece_bytes) {
                server.receive(piece, |piece| heard.extend_from_slice(piece)).unwrap();
            }
            assert!(heard == some, "in pieces of {piece_bytes}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_bit_that_is_changed_on_the_way_changes_nothing_that_is_heard(at: usize, bit in 0..8) {
            let (mut client, mut server) = ends();
            let mut wire = Vec::new();
            client.send(b"an order", &mut wire).unwrap();
            let at = at % wire.len();
            wire[at] ^= 1_u8 << bit;
            let mut heard = Vec::new();
            // A length that was made longer is waited for.
            let _ = server.receive(&wire, |said| heard.extend_from_slice(said));
            // What a record's header says of its type and version changes nothing (RFC 8446, 5.2).
            prop_assert!(heard.is_empty() || (at < 3 && heard == b"an order"), "{heard:?}");
        }

        #[test]
        fn a_handshake_that_is_changed_on_the_way_never_ends_well(at: usize, bit in 0..8) {
            let identity = Identity::new().unwrap();
            let client = TlsChannel::connect(identity.public_key(), PROTOCOL).unwrap();
            let server = TlsServer::new(&identity, PROTOCOL).unwrap().accept().unwrap();
            let mut first = true;
            let connected = connect(client, server, |bytes| {
                // The record's version, which everybody ignores (RFC 8446, 5.1), is no part of the transcript.
                if std::mem::take(&mut first) {
                    let at = 5 + at % (bytes.len() - 5);
                    bytes[at] ^= 1_u8 << bit;
                }
            });
            prop_assert!(connected.is_err());
        }

        #[test]
        fn no_bytes_panic_either_end(bytes: Vec<u8>) {
            let identity = Identity::new().unwrap();
            let _ = TlsServer::new(&identity, PROTOCOL).unwrap().accept().unwrap().receive(&bytes, |_| {});
            let _ = TlsChannel::connect(identity.public_key(), PROTOCOL).unwrap().receive(&bytes, |_| {});
            let ((mut client, mut server), (mut over, _)) = (ends(), ends());
            over.end(&mut Vec::new()).unwrap();
            let _ = [&mut client, &mut server, &mut over].map(|end| end.receive(&bytes, |_| {}));
        }
    }
}

//! Identity of the server: a raw public key (RFC 7250), new in each transfer and known to the
//! client.

use std::sync::Arc;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use ring::{rand::SystemRandom, signature::Ed25519KeyPair};
use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring::default_provider, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
        UnixTime,
    },
    server::AlwaysResolvesServerRawPublicKeys,
    sign::CertifiedKey,
};

/// Server name for TLS.
pub(super) const NAME: &str = "lab";

/// Failure to create an identity.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdentityError {
    #[error("no random numbers for a key")]
    Key,
    #[error(transparent)]
    Tls(#[from] Error),
    #[error(transparent)]
    Suite(#[from] NoInitialCipherSuite),
}

/// Creates the configurations of a server and of a client that knows its key.
pub(super) fn configs() -> Result<(quinn::ClientConfig, quinn::ServerConfig), IdentityError> {
    let provider = Arc::new(default_provider());
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let pkcs8 = pkcs8.map_err(|_| IdentityError::Key)?;
    let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec()));
    let key = provider.key_provider.load_private_key(der)?;
    let public = key.public_key().ok_or(Error::NoCertificatesPresented)?;
    let public = CertificateDer::from(public.to_vec());
    let known = Known {
        public: public.clone(),
        provider: Arc::clone(&provider),
    };
    let only_13 = &[&rustls::version::TLS13];
    let client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(only_13)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(known))
        .with_no_client_auth();
    let certified = Arc::new(CertifiedKey::new(vec![public], key));
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(only_13)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
    let client = QuicClientConfig::try_from(client)?;
    let server = QuicServerConfig::try_from(server)?;
    Ok((
        quinn::ClientConfig::new(Arc::new(client)),
        quinn::ServerConfig::with_crypto(Arc::new(server)),
    ))
}

/// Verifier that accepts the server's key only.
#[derive(Debug)]
struct Known {
    public: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity == self.public {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General("key is not that of the server".to_owned()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("QUIC has TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(cert.as_ref()),
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

//! The algorithms of TLS between servers of a cluster, and between regions.

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};

/// The cryptography, with the cipher suites that Larder uses.
///
/// AES-128 comes first, and AES-256 is not offered: its additional rounds cost time, and 128 bits are not the weakest part.
#[must_use]
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519],
        ..default_provider()
    }
}

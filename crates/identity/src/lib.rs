//! Identities: the keys of servers, the certificates that name them, the authority that signs these, and the proofs with which
//! a machine becomes a server.
//!
//! It configures TLS and opens no connection. It decides about requests for certificates; the crates above send and receive
//! them: `larder-net` within a cluster, and `larder-link` between regions.
//!
//! | file | what |
//! |---|---|
//! | `subject.rs` | the server that a certificate names, with its roles |
//! | `key.rs`, `key_file.rs` | keys, and the files that they lie in |
//! | `certificate.rs`, `authority.rs` | a server's certificate, and the authority that signs it |
//! | `ciphers.rs`, `session.rs`, `verifier.rs` | what all TLS of Larder shares: algorithms, sessions, custom verifiers of certificates |
//! | `tls.rs` | an identity as TLS uses it |
//! | `proof.rs`, `text.rs` | proofs with a shared secret, and secrets as lines of text |
//! | `token.rs`, `enrolment.rs` | how a server becomes a member, and stays one |
//! | `secret.rs`, `discovery.rs` | what machines share before they are a cluster |

mod authority;
mod certificate;
pub mod ciphers;
pub mod discovery;
pub mod enrolment;
mod error;
mod key;
pub mod key_file;
pub mod limits;
pub mod proof;
mod secret;
pub mod session;
mod subject;
pub mod text;
pub mod tls;
mod token;
pub mod verifier;

pub use authority::{Authority, Fingerprint, Validity};
pub use certificate::{Identity, IdentityRequest};
pub use enrolment::{Admission, AuthorityCell, Enrolment};
pub use error::{IdentityError, Refusal, SecretError, TokenError};
pub use key::PublicKey;
pub use secret::{PeerSecret, Prover};
pub use subject::{Role, Roles, Subject, server_name};
pub use tls::Credentials;
pub use token::{JoinToken, TokenId, TokenRecord};

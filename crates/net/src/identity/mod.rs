//! Identities: the keys of servers, the certificates that name them, the authority that signs these, and what lets a
//! machine become a server.
//!
//! It knows TLS as a format and no connection: what is asked and told is decided here, and carried by the modules
//! above. Nothing here uses anything of this crate outside of this folder.
//!
//! | file | what |
//! |---|---|
//! | `subject.rs` | the server that a certificate names, with its roles |
//! | `key.rs`, `keyfile.rs`, `ciphers.rs` | keys, the files that they lie in, the algorithms |
//! | `certificate.rs`, `authority.rs` | a server's certificate, and who signs it |
//! | `tls.rs` | an identity as TLS uses it |
//! | `token.rs`, `enrolment.rs` | how a server becomes a member, and stays one |
//! | `secret.rs`, `knocking.rs` | what machines share before they are a cluster |

pub(crate) mod authority;
pub(crate) mod certificate;
pub(crate) mod ciphers;
pub(crate) mod enrolment;
mod error;
pub(crate) mod key;
mod keyfile;
pub(crate) mod knocking;
pub(crate) mod limits;
pub(crate) mod secret;
pub(crate) mod subject;
pub(crate) mod tls;
mod token;

pub use authority::{Authority, Fingerprint};
pub use certificate::{Identity, IdentityRequest};
pub use enrolment::{Admission, AuthorityCell, Enrolment};
pub use error::{IdentityError, Refusal, SecretError, TokenError};
pub use key::PublicKey;
pub use secret::PeerSecret;
pub use subject::{Role, Roles, Subject};
pub use tls::Credentials;
pub use token::{JoinToken, TokenId, TokenRecord};

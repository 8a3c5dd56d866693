//! The S3 face: S3's REST protocol over any [`larder_objects::Objects`].
//!
//! # How to run it
//!
//! ```no_run
//! # use std::sync::Arc;
//! # async fn run<O: larder_objects::Objects>(store: Arc<O>) -> Result<(), Box<dyn std::error::Error>> {
//! use larder_s3::{Credentials, FaceOptions, S3Service, ServerOptions, serve};
//!
//! let root = Credentials { access_key: "AKEXAMPLE".into(), secret_key: "secret".into() };
//! let service = S3Service::new(store, root, FaceOptions::default())?;
//! let listener = larder_s3::listen("127.0.0.1:0").await?;
//! let shutdown = async { let _ = tokio::signal::ctrl_c().await; };
//! serve(listener, service, Arc::new(()), ServerOptions::default(), shutdown).await;
//! # Ok(()) }
//! ```
//!
//! # Invariants
//!
//! 1. Everything that a client announces of a body (length, MD5, checksums, signatures) is verified
//!    before the store is asked to commit it.
//! 2. What is not implemented is answered `NotImplemented`; no request is silently half-obeyed.
//! 3. Memory for bodies is bounded by [`limits::BODY_BUDGET_BYTES`], whatever clients declare.
//! 4. No secret and no signature is ever logged.
//! 5. `auth/signature.rs` checks a request's signature, and `auth/access.rs` decides what it may do, each once. Nothing below
//!    them checks or decides again, and nothing reaches the operations but through them.
//! 6. Before its signature is verified, a request holds its connection and a bounded part of its head, and neither a turn
//!    nor memory for its body.
//!
//! # Rooms
//!
//! Each uses only what stands below it in this table, and the limits, options and errors beside it.
//!
//! | room | what |
//! |---|---|
//! | `serving/` | connections become requests, and requests get answers |
//! | `service.rs` | puts together what follows |
//! | `forwarding.rs` | other servers, to which a request may be handed on |
//! | `ops/` | the operations |
//! | `cors/` | requests of pages of other origins |
//! | `forms/` | uploads by HTML forms |
//! | `body/` | a request's body on its way to the store |
//! | `answer.rs` | answers as S3 writes them |
//! | `auth/` | signatures, keys and access, and the gate that they open |
//! | `request/` | what requests say |
//! | `digest/` | checksums and MD5 |
//! | `connection/` | one client's connection |
//!
//! The types of answers, and how their XML is written, are those of the protocol library (`s3s`). It sees no request. This crate
//! keeps no state of its own.

#![deny(unsafe_code)]

mod answer;
mod auth;
mod body;
mod connection;
mod cors;
mod digest;
mod errors;
mod forms;
mod forwarding;
pub mod limits;
mod ops;
mod options;
mod request;
mod service;
mod serving;

pub use auth::root_keys::{Credentials, PreviousUse, RootKeys};
pub use body::inbound::Inbound;
pub use forwarding::UploadForwarder;
pub use options::{DEFAULT_REGION, GatewayOptions, OptionsError, ServerOptions};
pub use request::bytes_moved::BytesMoved;
pub use service::S3Service;
pub use serving::finished_request::FinishedRequest;
pub use serving::hooks::{ClusterHealth, ServerHooks};
pub use serving::server::{Server, listen, serve};

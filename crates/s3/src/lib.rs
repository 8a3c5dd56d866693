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
//! 5. Before its signature is verified, a request holds its connection and a bounded part of its head, and neither a turn
//!    nor memory for its body.
//!
//! This crate verifies no signature but those of version 2, and parses no XML itself (`s3s` does), and keeps no state of its own.

#![deny(unsafe_code)]

mod address;
mod admission;
mod announced;
mod append;
mod attributes;
mod authorization;
mod body;
mod bucket;
mod bucket_cors;
mod checksums;
mod clearing;
mod conditions;
mod connections;
mod copy;
mod cors;
mod delete;
mod describe;
mod digested;
mod digests;
mod dispatch;
mod encryption;
mod ended;
mod errors;
mod exchange;
mod face;
mod failures;
mod form;
mod form_body;
mod form_head;
mod gate;
mod get;
mod guard;
mod headers;
mod health;
mod hooks;
mod ids;
mod inbound;
mod lanes;
pub mod limits;
mod list;
mod names;
mod neighbours;
mod options;
mod own_headers;
mod patience;
mod posted;
mod probes;
mod pulse;
mod put;
mod range;
mod repairs;
mod reply;
mod root_keys;
mod server;
mod service;
mod shape;
mod signed;
mod subresources;
mod tagging;
mod tags;
mod token;
mod unread;
mod unread_xml;
mod upload;
mod upload_lists;
mod verified;
mod version_2;
mod waiting;
mod watched;
mod wire;
mod xml;

pub use ended::Ended;
pub use hooks::{ClusterHealth, ServerHooks};
pub use inbound::Inbound;
pub use neighbours::Neighbours;
pub use options::{FaceOptions, OptionsError, ServerOptions};
pub use root_keys::{Credentials, PreviousUse, RootKeys};
pub use server::{Server, listen, serve};
pub use service::S3Service;

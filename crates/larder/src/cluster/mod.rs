//! `larder manager`, `meta`, `data`, `proxy`: one role of a cluster in a process of its own.
//!
//! Every one of them takes up its identity (or joins, the first time) and follows the managers' map. It opens its stored
//! state and its port, and tells the managers that it has begun.

pub(crate) mod admin_client;
pub(crate) mod bucket;
pub(crate) mod config;
mod disk_free_space;
mod gateway;
pub(crate) mod operate;
mod parent_watch;
mod proxy;
pub(crate) mod rebalance;
pub(crate) mod record;
mod role_context;
mod servers;
pub(crate) mod status;
pub(crate) mod token;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use larder_identity::{Credentials, Identity, JoinToken, TokenError};
use larder_link::LinkError;
use larder_net::{Endpoint, ListenSocket};
use larder_protocol::manager::state::{ServerRole, ServerState, Settings, Topology};
use larder_roles::identity::{IDENTITY_FILE, Nobody, identity_in};
use larder_roles::limits::START_TIMEOUT_MS;
use larder_roles::managers::{
    Contacts, Managers, ManagersClient, MapStore, MapStoreError, OlderMap,
};
use larder_roles::quorum::manager_identity_in;
use larder_roles::renewal::Renewal;
use larder_types::{BootId, RegionId, ServerId};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until};

use crate::access_log::AccessLogError;
use crate::args::RoleArgs;
use crate::config::{ConfigError, check_device};
use crate::kind::{self, KindError};
use crate::metrics::Metrics;
use crate::serving::{ServingError, check_gateway_options};
use crate::shutdown_notice::ShutdownNotice;
use crate::{access_log, exit, logging};
pub(crate) use config::RoleConfig;
use config::parse_manager;
use role_context::Sockets;
pub(crate) use role_context::{OnStarted, RoleContext, StartedRole, Stop};

/// The time that a role of its own waits for managers.
const START_TIMEOUT: Duration = Duration::from_millis(START_TIMEOUT_MS);

/// Errors with which a process does not start, or stops.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Kind(#[from] KindError),
    #[error("{0} is a directory: name the configuration file of the server with --config")]
    NoFile(String),
    #[error("join in the configuration is not a join token: {0}")]
    Join(#[from] TokenError),
    #[error("no token was made: {0}")]
    Token(String),
    #[error(transparent)]
    Nobody(#[from] Nobody),
    #[error(transparent)]
    OlderMap(#[from] OlderMap),
    #[error(transparent)]
    Kept(#[from] MapStoreError),
    #[error(transparent)]
    Identity(#[from] larder_identity::IdentityError),
    #[error("{found} has the identity of a {has}, which is not what is started here")]
    OtherRole { found: String, has: String },
    #[error("the address {address:?} cannot be used: {source}; set {field}")]
    Listen { address: String, field: &'static str, source: std::io::Error },
    #[error(
        "no manager answered within {} s: is one running at {asked}? If most of their directories are lost, see \
         docs/operations.md, managers are lost",
        START_TIMEOUT_MS / 1000
    )]
    NoManagers { asked: String },
    #[error(
        "the managers at {asked} have no quorum: start most of the cluster's machines with managers, and see that they \
         reach each other. If most of their directories are lost, see docs/operations.md, managers are lost"
    )]
    NoQuorum { asked: String },
    #[error(transparent)]
    Manager(#[from] larder_roles::quorum::ManagerError),
    #[error(transparent)]
    Data(#[from] larder_roles::data::node::DataNodeError),
    #[error(transparent)]
    Meta(#[from] larder_roles::OpenError),
    #[error("{0}")]
    Face(Box<ServingError>),
    #[error("{0}")]
    Named(String),
    #[error("{0}")]
    NotDone(String),
    #[error(
        "{name} (server {server}) was removed from the cluster for good, and nothing that it has is of use any more. \
         To use the machine again, empty {dir} and join with a new token"
    )]
    Removed { server: ServerId, name: String, dir: String },
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
    #[error(transparent)]
    Region(#[from] LinkError),
    #[error(
        "the cluster is region {number} already, by another key than that in {dir}/region: its gateway is another proxy's \
         directory. If that one is lost, restore its `region` directory here; a cluster becomes no other region"
    )]
    OtherRegion { dir: String, number: RegionId },
    #[error("the system does not let the server run: {0}")]
    System(std::io::Error),
    #[error("the server cannot go on: {0}")]
    Fatal(String),
}

impl RoleError {
    /// An error of what serves S3.
    fn face(error: impl Into<ServingError>) -> Self {
        Self::Face(Box::new(error.into()))
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::NoFile(_) | Self::Join(_) | Self::Named(_) => exit::USAGE,
            Self::Face(error) => error.code(),
            Self::NotDone(_) => exit::FAULTS,
            Self::Removed { .. } => exit::REMOVED,
            Self::Fatal(_) => exit::EXIT_RESTART,
            _ => exit::CANNOT_START,
        }
    }
}

/// Runs one role until it is told to stop.
pub(crate) fn run(role: ServerRole, args: &RoleArgs) -> ExitCode {
    match start(role, args) {
        Ok(()) => exit::code(exit::OK),
        Err(error) => exit::failed(&error, error.code()),
    }
}

/// Runs one role within what is around it.
pub(crate) async fn serve(
    role: ServerRole,
    config: RoleConfig,
    context: RoleContext,
) -> Result<(), RoleError> {
    match role {
        ServerRole::Manager => servers::manager(config, context).await,
        ServerRole::Meta => servers::meta(config, context).await,
        ServerRole::Data => servers::data(config, context).await,
        ServerRole::Proxy => proxy::run(config, context).await,
    }
}

fn start(role: ServerRole, args: &RoleArgs) -> Result<(), RoleError> {
    if args.config.is_dir() {
        kind::check(&args.config, role.into())?;
        return Err(RoleError::NoFile(args.config.display().to_string()));
    }
    let config = RoleConfig::load(&args.config)?;
    kind::check(&config.dir, role.into())?;
    logging::start(config.log_format);
    check(role, &config)?;
    let lifeline = args.while_stdin_open.then(parent_watch::hold).transpose();
    let lifeline = lifeline.map_err(RoleError::System)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(RoleError::System)?;
    let (mut held, mut accesses) = (None, None);
    let outcome = runtime.block_on(async {
        // A directory that is refused opens no port, and one whose ports are taken is left as it was.
        held = Some(kind::bind(&config.dir, role.into())?);
        let sockets = Sockets::open(role, &config).await?;
        let metrics = Arc::new(Metrics::of_none());
        // Clients are sent to proxies alone.
        let notice = Some(config.stop_notice).filter(|_| role == ServerRole::Proxy);
        let leaving = ShutdownNotice::new(notice.unwrap_or_default(), metrics.clone());
        let context = RoleContext::alone(Stop::new(lifeline, leaving)?, sockets, metrics);
        match role {
            ServerRole::Proxy => {
                let file = args.config.clone();
                let again = move || RoleConfig::load(&file).map(|config| config.access_log);
                let log = access_log::follow(&config.access_log, Some(again))?;
                accesses = Some(log.clone());
                context.metrics.log_accesses(log);
            }
            _ => access_log::ignore_hangups()?,
        }
        serve(role, config, context).await
    });
    // A request that is cut off does the rest of its work before the process ends.
    runtime.shutdown_timeout(Duration::from_secs(1));
    if let Some(accesses) = accesses {
        accesses.close();
    }
    drop(held);
    outcome
}

/// Checks what the role would find out after something was made. Changes nothing.
fn check(role: ServerRole, config: &RoleConfig) -> Result<(), RoleError> {
    let token = token_of(config)?;
    let founds = role == ServerRole::Manager && config.found.is_some();
    let is_new = !config.dir.join(IDENTITY_FILE).exists();
    if is_new && !founds {
        if token.is_none() {
            return Err(Nobody::NoToken.into());
        }
        if config.managers.is_empty() {
            return Err(Nobody::NoManager.into());
        }
    }
    match role {
        ServerRole::Proxy => check_gateway_options(&config.face()).map_err(RoleError::face),
        ServerRole::Data if is_new => Ok(check_device(&config.data)?),
        _ => Ok(()),
    }
}

/// The token in the configuration.
fn token_of(config: &RoleConfig) -> Result<Option<JoinToken>, RoleError> {
    Ok(config.join.as_deref().map(str::parse::<JoinToken>).transpose()?)
}

/// The state that every role but the manager begins with.
struct Member {
    me: ServerId,
    boot: BootId,
    endpoint: Arc<Endpoint>,
    managers: Arc<ManagersClient>,
    listen_socket: ListenSocket,
    /// Where the others reach it.
    address: String,
    renewal: Renewal,
}

impl Member {
    /// Takes up identity and port, and waits for the map; `None` if it is told to stop meanwhile.
    async fn begin(
        config: &RoleConfig,
        role: ServerRole,
        context: &mut RoleContext,
    ) -> Result<Option<Self>, RoleError> {
        let identity = identity(config, role).await?;
        let me = identity.subject().server;
        let credentials = Credentials::new(&identity)?;
        let endpoint = Endpoint::new(credentials.clone());
        let (listen_socket, address) = context.listen(config)?;
        endpoint.share(&listen_socket);
        let map_store = MapStore::open(&config.dir, me)?;
        let contacts = Arc::new(Contacts::new(&endpoint, managers(config)));
        let managers = Arc::new(
            ManagersClient::start_keeping(contacts, map_store).with_colocated(context.colocated()),
        );
        // Before it waits: a certificate that has ended is renewed, and only then somebody answers.
        let path = config.dir.join(IDENTITY_FILE);
        let renewal = Renewal::of_member(path, identity, credentials, managers.clone());
        context.greet(StartedRole::Member(&managers));
        let max_wait = context.max_wait;
        tokio::select! {
            known = wait_until_known(&managers, max_wait) => known?,
            () = context.stop.requested() => return Ok(None),
        }
        if let Some(removed) = removal(&managers.map(), me, &config.dir) {
            return Err(removed);
        }
        let boot = BootId(larder_env::rng::unique_u64());
        Ok(Some(Self { me, boot, endpoint, managers, listen_socket, address, renewal }))
    }

    fn managers(&self) -> Arc<dyn Managers> {
        self.managers.clone()
    }

    /// Returns when the managers' map lacks changes that this server has seen.
    fn older_map(&self) -> impl Future<Output = OlderMap> + use<> {
        let mut older = self.managers.older();
        async move {
            let is_certain =
                |older: &Option<OlderMap>| older.is_some_and(|it| it.is_of_another_history());
            match older.wait_for(is_certain).await.map(|older| *older) {
                Ok(Some(older)) => older,
                Ok(None) | Err(_) => std::future::pending().await,
            }
        }
    }
}

/// Waits until the managers have told their map, that lacks nothing of the one that was kept; for so long, if for any time.
/// Longer while parts of the map come.
async fn wait_until_known(
    managers: &ManagersClient,
    max_wait: Option<Duration>,
) -> Result<(), RoleError> {
    let mut versions = managers.versions();
    let known = async {
        while managers.map().founded.is_none() {
            if versions.changed().await.is_err() {
                return;
            }
        }
    };
    let Some(max_wait) = max_wait else {
        known.await;
        return Ok(());
    };
    let late = async {
        let begun = Instant::now();
        loop {
            let until = managers.start_gives_up(begun, max_wait);
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    };
    tokio::select! {
        biased;
        () = known => return Ok(()),
        () = late => {}
    }
    if let Some(older) = *managers.older().borrow() {
        return Err(older.into());
    }
    Err(no_map(managers))
}

/// The reason why no map has come.
fn no_map(managers: &ManagersClient) -> RoleError {
    let asked: Vec<_> = managers.places().into_iter().map(|(_, address)| address).collect();
    let asked = asked.join(", ");
    match managers.lacks_quorum() {
        true => RoleError::NoQuorum { asked },
        false => RoleError::NoManagers { asked },
    }
}

/// Returns when the map has something to say against this server's going on.
async fn dismissed(
    managers: &dyn Managers,
    objection: impl Fn(&Topology) -> Option<RoleError>,
) -> RoleError {
    let mut versions = managers.versions();
    loop {
        if let Some(objection) = objection(&managers.map()) {
            return objection;
        }
        if versions.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The objection to a server that was removed from the cluster.
fn removal(map: &Topology, server: ServerId, dir: &Path) -> Option<RoleError> {
    let record = map.servers.get(&server).filter(|it| it.state == ServerState::Removed)?;
    let (name, dir) = (record.name.clone(), dir.display().to_string());
    Some(RoleError::Removed { server, name, dir })
}

/// The objections to a run: its server was removed, or another run of it has begun, and the managers hear this one no
/// more.
fn end_of_run(map: &Topology, server: ServerId, boot: BootId, dir: &Path) -> Option<RoleError> {
    let is_over = map.servers.get(&server).is_some_and(|it| it.ended.contains(&boot));
    let over =
        || RoleError::Fatal("the managers count this run as over: start it again".to_owned());
    removal(map, server, dir).or_else(|| is_over.then(over))
}

/// The identity in the directory, or a new one by the token.
async fn identity(config: &RoleConfig, role: ServerRole) -> Result<Identity, RoleError> {
    let token = token_of(config)?;
    let addresses: Vec<String> = managers(config).into_iter().map(|(_, address)| address).collect();
    let (dir, token) = (&config.dir, token.as_ref());
    let identity = match role {
        ServerRole::Manager => manager_identity_in(dir, &addresses, token).await?,
        _ => identity_in(dir, &addresses, token).await?,
    };
    let has = identity.subject().roles;
    let wanted = larder_roles::identity::roles_of(&[role].into());
    if !has.meets(wanted) {
        let found = config.dir.join(IDENTITY_FILE).display().to_string();
        return Err(RoleError::OtherRole { found, has: has.to_string() });
    }
    Ok(identity)
}

fn managers(config: &RoleConfig) -> Vec<(ServerId, String)> {
    config.managers.iter().filter_map(|manager| parse_manager(manager)).collect()
}

/// The settings with which a configuration founds a cluster.
pub(crate) fn settings(found: &config::Found) -> Settings {
    let blocks = found.volume_mib * 1024 * 1024 / u64::from(larder_types::limits::BLOCK_BYTES);
    Settings {
        pg_count: found.pg_count,
        members: found.copies,
        min_members: found.copies / 2 + 1,
        copies: found.copies,
        min_copies: found.copies.div_ceil(2),
        lv_blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
    }
}

/// Listens where the configuration says.
async fn bind(address: &str, field: &'static str) -> Result<TcpListener, RoleError> {
    larder_s3::listen(address).await.map_err(|source| RoleError::Listen {
        address: address.to_owned(),
        field,
        source,
    })
}

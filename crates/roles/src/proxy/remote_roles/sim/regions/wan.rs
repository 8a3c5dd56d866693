//! The network between regions: one host each, known by its number.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use larder_identity::{Role, Roles, Subject};
use larder_link::simulated::{Boxed, BoxedStream, SimulatedLinks, SimulatedListener, settle};
use larder_link::{Address, Fingerprint, LinkError, OwnRegion, RegionEndpoint};
use larder_net::simulated::{Arrivals, Host, Network};
use larder_types::{ClusterId, RegionId, ServerId};

/// The regions' hosts, as if they were one cluster's.
const CLUSTER: ClusterId = ClusterId(77);

/// A region's place in the network.
pub(super) fn place(region: RegionId) -> ServerId {
    ServerId(u32::from(region.0))
}

fn address(region: RegionId) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 0, region.0 as u8), 7001).into()
}

fn key_of(server: ServerId) -> Fingerprint {
    Fingerprint([server.0 as u8; 32])
}

/// A region as its list has it.
pub(super) fn own(region: RegionId) -> OwnRegion {
    let address = address(region).to_string();
    OwnRegion {
        number: region,
        name: format!("r{region}").parse().expect("it is a name"),
        advertise: address.parse().expect("it is an address"),
        listen: address,
        fingerprint: key_of(place(region)),
        removed: false,
    }
}

/// Makes the store in a directory one of so many regions.
pub(super) fn become_one_of(dir: &Path, region: RegionId, count: u16) -> Result<(), LinkError> {
    let all: Vec<OwnRegion> = (1..=count).map(|number| own(RegionId(number))).collect();
    settle(dir, own(region), &all)
}

#[derive(Debug)]
struct SimulatedPaths(Host);

impl SimulatedLinks for SimulatedPaths {
    fn open<'a>(&'a self, to: &'a Address) -> Boxed<'a, io::Result<(BoxedStream, Fingerprint)>> {
        Box::pin(async {
            let address: SocketAddr = to.as_str().parse().map_err(io::Error::other)?;
            let SocketAddr::V4(v4) = address else { panic!("{address} is no region's") };
            let server = ServerId(u32::from(v4.ip().octets()[3]));
            let pipe = self.0.open((server, Role::Proxy), address).await?;
            Ok((Box::new(pipe) as BoxedStream, key_of(server)))
        })
    }
}

#[derive(Debug)]
struct Gate(Arrivals);

impl SimulatedListener for Gate {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn next(&mut self) -> Boxed<'_, (BoxedStream, Fingerprint, SocketAddr)> {
        Box::pin(async {
            let (pipe, subject, address) = self.0.next().await;
            (Box::new(pipe) as BoxedStream, key_of(subject.server), address)
        })
    }
}

/// A region's end of its links, and where the others' come to.
pub(super) fn open(
    network: &Arc<Network>,
    region: RegionId,
    dir: &Path,
) -> Result<(Arc<RegionEndpoint>, larder_link::ListenSocket), LinkError> {
    let roles = Roles::of(&[Role::Proxy]);
    let subject = Subject { cluster: CLUSTER, server: place(region), roles };
    let host = network.host(subject);
    let door = Gate(host.listen(address(region)));
    let site = RegionEndpoint::simulated(dir, Arc::new(SimulatedPaths(host)))?;
    Ok((site, larder_link::ListenSocket::Simulated(Box::new(door))))
}

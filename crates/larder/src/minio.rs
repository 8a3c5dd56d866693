//! The state of a store or cluster as MinIO's client reads it for `mc admin info`, made of the document of `larder status --json`.
//!
//! Larder has no pools and no erasure sets, and names its kind instead: the client then shows servers, objects, buckets and bytes,
//! and disks only with `--json`. Managers do not keep since when a server runs: of one in a cluster the client shows `now`.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::release::VERSION;
use crate::wall_clock::now_ms;

/// The parts of a document of either kind that the client shows. A cluster has `servers`, a single node has not.
#[derive(Deserialize)]
struct StatusFields {
    space: Value,
    buckets: Value,
    // Of a single node.
    release: Option<String>,
    began_ms: Option<u64>,
    is_ready: Option<bool>,
    objects: Option<u64>,
    object_bytes: Option<u64>,
    buckets_not_named: Option<u64>,
    // Of a cluster.
    cluster: Option<String>,
    cluster_version: Option<u8>,
    servers: Option<Vec<Server>>,
}

#[derive(Deserialize)]
struct Server {
    name: String,
    state: String,
    address: Option<String>,
    disks: Vec<Disk>,
}

#[derive(Deserialize)]
struct Disk {
    id: u32,
    space: Space,
}

/// Bytes of a disk.
#[derive(Deserialize)]
struct Space {
    bytes: u64,
    used: u64,
    waiting: u64,
    free: u64,
}

/// Objects of all buckets of a cluster.
#[derive(Deserialize)]
struct Objects {
    objects: u64,
    object_bytes: u64,
}

/// The document that the client reads; `None` if `status` is none of ours.
pub(crate) fn info(status: &[u8]) -> Option<Bytes> {
    let fields: StatusFields = serde_json::from_slice(status).ok()?;
    let document = match &fields.servers {
        Some(servers) => of_cluster(&fields, servers)?,
        None => of_node(&fields)?,
    };
    serde_json::to_vec(&document).ok().map(Bytes::from)
}

fn of_node(fields: &StatusFields) -> Option<Value> {
    let space: Space = Space::deserialize(&fields.space).ok()?;
    let named = fields.buckets.as_array()?.len() as u64;
    let server = json!({
        "endpoint": "this server",
        "state": state(if fields.is_ready? { "up" } else { "starting" }),
        "uptime": now_ms().saturating_sub(fields.began_ms?) / 1000,
        "version": fields.release,
        "drives": [drive(0, true, &space)],
        "mem_stats": no_memory(),
    });
    let buckets = named + fields.buckets_not_named?;
    Some(document(None, vec![server], buckets, (fields.objects?, fields.object_bytes?)))
}

fn of_cluster(fields: &StatusFields, servers: &[Server]) -> Option<Value> {
    let Objects { objects, object_bytes } = Objects::deserialize(&fields.space).ok()?;
    let version = format!("{VERSION}, protocol {}", fields.cluster_version?);
    let there = servers.iter().filter(|server| server.state != "removed");
    let shown = there.map(|server| {
        let is_up = server.state == "up";
        let drives: Vec<_> = server.disks.iter().map(|it| drive(it.id, is_up, &it.space)).collect();
        json!({
            "endpoint": match &server.address {
                Some(address) => format!("{} ({address})", server.name),
                None => server.name.clone(),
            },
            "state": state(&server.state),
            "version": version,
            "drives": drives,
            "mem_stats": no_memory(),
        })
    });
    let shown = shown.collect();
    let id = fields.cluster.as_deref();
    Some(document(id, shown, fields.buckets.as_u64()?, (objects, object_bytes)))
}

fn document(
    id: Option<&str>,
    servers: Vec<Value>,
    buckets: u64,
    (objects, bytes): (u64, u64),
) -> Value {
    let drives = || servers.iter().filter_map(|it| it["drives"].as_array()).flatten();
    let online = drives().filter(|it| it["state"] == "ok").count();
    json!({
        "mode": "online",
        "deploymentID": id,
        "buckets": { "count": buckets },
        "objects": { "count": objects },
        "usage": { "size": bytes },
        "backend": {
            "backendType": "Larder",
            "onlineDisks": online,
            "offlineDisks": drives().count() - online,
        },
        "servers": servers,
    })
}

fn drive(id: u32, is_up: bool, space: &Space) -> Value {
    json!({
        "path": format!("disk {id}"),
        "state": if is_up { "ok" } else { "offline" },
        "totalspace": space.bytes,
        "usedspace": space.used + space.waiting,
        "availspace": space.free,
        // In no pool.
        "pool_index": -1,
        "set_index": -1,
        "disk_index": -1,
    })
}

/// The client's word for the state of a server.
fn state(state: &str) -> &'static str {
    match state {
        "up" => "online",
        "down" => "offline",
        _ => "initializing",
    }
}

/// The client has no default for these.
fn no_memory() -> Value {
    json!({ "Alloc": 0, "TotalAlloc": 0, "Mallocs": 0, "Frees": 0, "HeapAlloc": 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: &str = r#"{"bytes":1000,"used":300,"waiting":20,"free":680,"unknown":0}"#;

    fn read(status: &str) -> Option<Value> {
        info(status.as_bytes()).map(|it| serde_json::from_slice(&it).unwrap())
    }

    #[test]
    fn a_node_is_a_server_with_a_drive() {
        let status = format!(
            r#"{{"verdict":"well","release":"0.1.0 (commit a)","began_ms":1000,"is_ready":true,"space":{SPACE},
                "objects":7,"object_bytes":250,"buckets":[{{"name":"a"}}],"buckets_not_named":2}}"#
        );
        let shown = read(&status).unwrap();
        assert_eq!(shown["buckets"]["count"], 3);
        assert_eq!((&shown["objects"]["count"], &shown["usage"]["size"]), (&7.into(), &250.into()));
        assert_eq!(shown["servers"][0]["state"], "online");
        assert_eq!(shown["servers"][0]["version"], "0.1.0 (commit a)");
        assert!(shown["servers"][0]["uptime"].as_u64().unwrap() > 0);
        let drive = &shown["servers"][0]["drives"][0];
        assert_eq!((&drive["usedspace"], &drive["availspace"]), (&320.into(), &680.into()));
        assert_eq!(shown["backend"]["onlineDisks"], 1);
    }

    #[test]
    fn a_clusters_servers_are_shown_with_their_states() {
        let server = |name: &str, state: &str| {
            format!(
                r#"{{"name":"{name}","state":"{state}","address":"h:1","disks":[{{"id":4,"space":{SPACE}}}]}}"#
            )
        };
        let status = format!(
            r#"{{"cluster":"abc","cluster_version":25,"buckets":2,"space":{{"all":{SPACE},"objects":9,"object_bytes":90}},
                "servers":[{},{}]}}"#,
            server("a", "up"),
            server("b", "down")
        );
        let shown = read(&status).unwrap();
        assert_eq!(
            (&shown["buckets"]["count"], &shown["objects"]["count"]),
            (&2.into(), &9.into())
        );
        assert_eq!(shown["deploymentID"], "abc");
        let states: Vec<_> = (0..2).map(|at| shown["servers"][at]["state"].clone()).collect();
        assert_eq!(states, ["online", "offline"]);
        assert_eq!(shown["servers"][0]["endpoint"], "a (h:1)");
        assert_eq!(
            (&shown["backend"]["onlineDisks"], &shown["backend"]["offlineDisks"]),
            (&1.into(), &1.into())
        );
    }

    #[test]
    fn another_document_is_none() {
        assert!(read("{}").is_none() && read("").is_none() && read("[]").is_none());
    }
}

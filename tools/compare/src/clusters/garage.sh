# Three nodes in three zones, so that each has one of the three copies. SYNC says whether metadata and content are synced.
umask 077
node() {
    mkdir "{data}/$1"
    cat > "{data}/$1.toml" <<END
metadata_dir = "{data}/$1/meta"
data_dir = "{data}/$1/data"
db_engine = "lmdb"
replication_factor = 3
metadata_fsync = $SYNC
data_fsync = $SYNC
rpc_secret = "{random}"
rpc_bind_addr = "127.0.0.1:$2"
rpc_public_addr = "127.0.0.1:$2"
[s3_api]
s3_region = "us-east-1"
api_bind_addr = "127.0.0.1:$3"
END
    "{program}" -c "{data}/$1.toml" server &
}
node a {p1} {s3}
node b {p2} {p3}
node c {p4} {p5}
ask() { "{program}" -c "{data}/a.toml" "$@"; }
# Until it succeeds: what is asked needs a node that runs, or that has heard of the others.
insist() { until ask "$@"; do sleep 1; done; }
for name in a b c; do
    until id=$("{program}" -c "{data}/$name.toml" node id -q); do sleep 1; done
    [ "$name" = a ] || insist node connect "$id"
    insist layout assign -z "$name" -c 100G "$(echo "$id" | cut -c1-16)"
done
insist layout apply --version 1
insist key import --yes {access} {secret}
insist key allow --create-bucket {access}
echo > "{ready}"
wait

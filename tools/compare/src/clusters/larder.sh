# Three nodes, each a manager, a meta server, a data server and a proxy; three copies of everything.
umask 077
exec "{program}" dev-cluster "{data}/cluster" --nodes 3 --json > "{ready}"

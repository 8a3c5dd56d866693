# A master, three volume servers in one rack, a filer and an S3 gateway. Replication 002: two more copies in the same rack.
# RULE, if it is not empty, is what the filer is configured with for everything below /buckets/.
umask 077
mkdir "{data}/master" "{data}/volume1" "{data}/volume2" "{data}/volume3" "{data}/filer"
"{program}" master -mdir="{data}/master" -ip=127.0.0.1 -port={p1} -port.grpc={p2} -telemetry=false \
    -defaultReplication=002 -volumeSizeLimitMB=1024 &
volume() {
    "{program}" volume -dir="$1" -max=100 -ip=127.0.0.1 -port="$2" -port.grpc="$3" -preStopSeconds=1 \
        -master=127.0.0.1:{p1}.{p2} &
}
volume "{data}/volume1" {p3} {p4}
volume "{data}/volume2" {p5} {p6}
volume "{data}/volume3" {p7} {p8}
cd "{data}/filer"
"{program}" filer -master=127.0.0.1:{p1}.{p2} -ip=127.0.0.1 -port={p9} -port.grpc={p10} \
    -defaultReplicaPlacement=002 -localSocket="{data}/filer.socket" &
"{program}" s3 -filer=127.0.0.1:{p9}.{p10} -ip=127.0.0.1 -ip.bind=127.0.0.1 -port={s3} -port.grpc={p11} \
    -port.iceberg=0 -port.lance=0 -localFilerSocket="{data}/filer.socket" -localSocket="{data}/s3.socket" \
    -config="{config}" &
if [ -n "$RULE" ]; then
    until echo "fs.configure -locationPrefix=/buckets/ $RULE -apply" |
        "{program}" shell -master=127.0.0.1:{p1}.{p2} -filer=127.0.0.1:{p9}.{p10} | grep -q locationPrefix
    do sleep 1; done
fi
echo > "{ready}"
wait

# A cluster of PostgreSQL whose sessions write without an end: rows that refer to each other, in two tables. Runs as its
# user. /tmp/count grows with each transaction; psql writes it itself, since CRIU cannot stop who is just starting another
# program (vfork).
export PATH=/usr/lib/postgresql/bin:/bin PGDATA=/tmp/data PGHOST=/tmp LC_ALL=C
initdb --no-sync --auth=trust --username=postgres >/tmp/initdb.log 2>&1 || exit 1
echo "
listen_addresses = ''
unix_socket_directories = '/tmp'
shared_buffers = 16MB
max_connections = 20
min_dynamic_shared_memory = 4MB
" >>$PGDATA/postgresql.conf
postgres >/tmp/postgres.log 2>&1 &
until psql --quiet --command 'select 1' >/dev/null 2>&1; do sleep 0.05; done
psql --quiet --command '
    create extension amcheck;
    create table batch (id bigint primary key, rows int not null);
    create table item (id bigserial primary key, batch bigint not null references batch, text text not null);
    create index on item (text)'
writer() {
    i=0
    while :; do
        i=$((i + 1))
        echo "begin; insert into batch values ($1 * 1000000000 + $i, 10);"
        echo "insert into item (batch, text) select $1 * 1000000000 + $i, md5(random()::text) from generate_series(1, 10);"
        echo "commit;"
        [ "$1" = 1 ] && echo "\\o /tmp/count" && echo "\\qecho $i" && echo "\\o"
    done | psql --quiet --set ON_ERROR_STOP=1 >/tmp/writer-$1.log 2>&1
    echo "writer $1 ended" >>/tmp/bad
}
writer 1 &
writer 2 &
wait

# Whether the database is whole and can be written to: ends with 0 when it is.
export PATH=/usr/lib/postgresql/bin:/bin PGHOST=/tmp LC_ALL=C
exec psql --quiet --username=postgres --set ON_ERROR_STOP=1 --command "
do \$\$
begin
    perform bt_index_check(indexrelid, true) from pg_index join pg_class on pg_class.oid = indexrelid
        where relnamespace = 'public'::regnamespace;
    if exists (select from batch left join item on item.batch = batch.id group by batch.id having count(item.id) <> rows)
    then raise exception 'batches are not whole'; end if;
    if (select count(*) from batch) < 10 then raise exception 'too few batches'; end if;
end \$\$;
set max_parallel_workers_per_gather = 2;
set parallel_setup_cost = 0;
set min_parallel_table_scan_size = 0;
select count(distinct text) from item;
checkpoint;
create table afterwards as select * from item;
" >/tmp/check.log 2>&1

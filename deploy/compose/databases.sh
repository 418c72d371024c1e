#!/bin/sh
# Run once by the Postgres image on an empty volume: a role and an empty database for each tenant on Postgres. The role
# owns its database, so `formgate migrate` may make what it needs, and no other tenant's role may open it.
set -eu
set -- acme # the tenants' slugs
for tenant; do
    psql --username "$POSTGRES_USER" --set ON_ERROR_STOP=1 --set tenant="$tenant" \
        --set password="$POSTGRES_PASSWORD" <<'SQL'
CREATE ROLE :"tenant" LOGIN PASSWORD :'password';
CREATE DATABASE :"tenant" OWNER :"tenant" ENCODING 'UTF8' TEMPLATE template0;
REVOKE CONNECT ON DATABASE :"tenant" FROM PUBLIC;
SQL
done

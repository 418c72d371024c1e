#!/bin/sh
# The Postgres image runs this once, on an empty volume. Creates a role and an empty database for each Postgres tenant and
# for the registry. The role owns its database, so `formgate migrate` can create what it needs. Roles of other tenants cannot connect to it.
set -eu
set -- acme registry # the tenants' slugs, and the registry
for tenant; do
    psql --username "$POSTGRES_USER" --set ON_ERROR_STOP=1 --set tenant="$tenant" \
        --set password="$POSTGRES_PASSWORD" <<'SQL'
CREATE ROLE :"tenant" LOGIN PASSWORD :'password';
CREATE DATABASE :"tenant" OWNER :"tenant" ENCODING 'UTF8' TEMPLATE template0;
REVOKE CONNECT ON DATABASE :"tenant" FROM PUBLIC;
SQL
done

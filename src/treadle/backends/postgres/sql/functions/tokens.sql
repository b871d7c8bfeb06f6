-- Tokens and versions. The server inlines these functions, so they cannot pin their search path: see columns.sql.

-- A new token. Its last 24 bits are random: a server that has forgotten the last tokens does not give them again.
create or replace function treadle.new_token() returns bigint language sql volatile
return nextval('treadle.token') << 24 | floor(random() * 16777216)::bigint;

-- The version that a contribution makes: see `next_version` in treadle.store.rules.
create or replace function treadle.next_version(p_token bigint, p_from bigint) returns bigint language sql immutable
return greatest((p_token % 1125899906842624 + 3 * coalesce(p_from, 0)) % 1125899906842624, 1);

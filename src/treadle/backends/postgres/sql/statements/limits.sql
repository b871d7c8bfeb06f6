-- :name claim_key
select treadle.claim_key(:key, :tenant, :owner, :ttl)

-- :name key_owner
select k.owner from treadle.claimed_key k
where k.key = :key and k.tenant = :tenant and k.until > treadle.clock()

-- :name take_permits
select * from treadle.take_permits(:worker, :request::int[], :count::int[], :name::text[],
  :algorithm::smallint[], :limit::int[], :window::float8[], :token::bigint[], :item::bigint[])

-- :name keep_permits
select treadle.keep_permits(:worker, :counted, :name::text[], :count::int[], :token::bigint[], :item::bigint[])

-- :name return_permits
select treadle.return_permits(:worker, :name::text[], :count::int[], :token::bigint[])

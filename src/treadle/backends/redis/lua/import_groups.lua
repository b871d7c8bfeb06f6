-- uses: store imports
-- flags: allow-oom
-- Store groups as another store had them. ARGV: see Imports.groups

Imports.groups(1)
Store.flush()
return 0

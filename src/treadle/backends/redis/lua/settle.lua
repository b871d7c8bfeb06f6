-- uses: settlements
-- flags: allow-oom
-- Settle: apply settlements of which none suspends its item. lib/settlements.lua has ARGV, and what it answers.

return settle_all()

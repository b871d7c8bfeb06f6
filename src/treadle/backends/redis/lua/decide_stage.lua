-- uses: stages
-- The items of a stage exist from now on, each as the root of its own group.
-- ARGV: stage(8), how many items it has
-- Answers now, or nothing: the stage is refused.

if not Stages.is_whole(ARGV[1], tonumber(ARGV[2])) then return false end
Stages.decide(ARGV[1])
Store.flush()
return now8

-- Submit as part of the user's own transaction. Refusals are answered, not raised: an exception would undo
-- what the user did before. The wake-up is sent when that transaction commits.
create or replace function treadle.submit_in_transaction(
  items treadle.new_items, p_plain boolean, p_cycles boolean, p_channel text,
  out refused text, out detail text, out stored treadle.stored_items)
language plpgsql
as $$
begin
  for try in 1 .. 5 loop
    begin
      stored := treadle.store_items(items, p_plain, p_cycles);
      if p_channel is not null then
        perform pg_notify(p_channel, '{"ready":true}');
      end if;
      return;
    exception
      when sqlstate 'TR001' or sqlstate 'TR002' or sqlstate 'TR007' or sqlstate 'TR011' then
        get stacked diagnostics refused = returned_sqlstate, detail = pg_exception_detail;
        return;
      when lock_not_available or serialization_failure then
        if try = 5 then
          raise;
        end if;
    end;
  end loop;
end $$;

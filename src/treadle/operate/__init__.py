"""What operators call. Commands, the dashboard and `app` share it. It imports the engine and the client.

observer, operator      reading; changing items: begin here
changes                 change many items: portions, canary, rate, what was not changed
bulk, bulk_portion      `app.bulk` starts and reads bulk actions; one of their items runs
bulk_states             how far bulk actions are
dead_letters            `app.dead`
promote                 copies a store into another one, or into a file
backlog                 what is due in each queue, and how fast it grows or drains
orders                  pauses and limits of the whole fleet
group_lists             groups and workflows as lists
filters                 which items are meant: options, words of commands, text of the dashboard
why/                    why an item, a queue or a schedule is where it is
store_look              what `status`, `doctor` and `app.problems` read
tell, webhook, post     tell a receiver of problems: once in the fleet; by a signed message; over HTTP
schedule_state          schedules, and how they stand
tenant_view             what a client of one tenant may see
steps, declared_steps   steps, signals and streams from outside; steps that a handler's source names
item_json, fleet_json   JSON forms of items; of everything else
sync_loop, server_stop  for threads that are not async; whether the web server is told to stop
"""

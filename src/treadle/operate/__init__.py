"""What operators call: reading, changing one item or many, dead letters, filters, why, problems, and their
JSON forms.

Commands, the dashboard and `app` share it. It imports the engine and the client. Begin with `operator`
(changes) and `observer` (reads); `changes` is the one way to change many items,
`filters` reads which are meant, and `why/` explains one item.
"""

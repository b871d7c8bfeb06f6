"""What users define: `@work`, work types, signatures, dependencies, groups, conditions, cron, secrets.

It imports what is below it, and `handler`, since a signature names `Context` and `Result`. Begin with
`decorators`.
"""

"""Access logs of web servers become one report.

| module | what it has |
| --- | --- |
| `logs` | what is in a log file: plain functions |
| `results` | the table of what was found |
| `steps` | the work: list the files, measure each, save, report |
| `sample` | makes log files to try it with |
| `__main__` | the commands |
"""

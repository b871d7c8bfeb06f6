"""The tasks of the site."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def double(number: int) -> int:
    return 2 * number

"""The tasks of an app. They are the same before and after."""

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task(takes_context=True)
def charge(context, order, cents):
    return f"order {order}: {cents} charged at attempt {context.attempt}"


@task
def remind(customer):
    return f"{customer} reminded"

"""A Django project whose views schedule tasks in their own transaction.

cd examples/django_shop
export DATABASE_URL=postgresql://me@localhost/mine
python manage.py migrate
python manage.py slotwise worker &
python manage.py runserver
curl -X POST 'http://localhost:8000/orders?email=ann@example.com'
curl http://localhost:8000/orders
python manage.py test
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)

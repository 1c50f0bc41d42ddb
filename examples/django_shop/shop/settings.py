"""The project's settings; slotwise's are at the end."""

from __future__ import annotations

import os

import django
from psycopg.conninfo import conninfo_to_dict

_address = conninfo_to_dict(os.environ.get("DATABASE_URL", ""))

SECRET_KEY = "an example"
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address.get("dbname"),
        "HOST": _address.get("host"),
        "PORT": _address.get("port"),
        "USER": _address.get("user"),
        "PASSWORD": _address.get("password"),
        "ATOMIC_REQUESTS": True,
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "slotwise.contrib.django",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"

SLOTWISE = {
    "POLL_INTERVAL": "2s",
    "RESOLVERS": ["slotwise.contrib.injection.DjangoSettings"],
}
REPORT_BUCKET = "orders"  # the argument report_bucket of a job

if django.VERSION >= (6,):
    TASKS = {"default": {"BACKEND": "slotwise.contrib.django.tasks.SlotwiseBackend"}}

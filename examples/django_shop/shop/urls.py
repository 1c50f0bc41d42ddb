"""The project's pages."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from orders.views import orders

urlpatterns = [path("admin/", admin.site.urls), path("orders", orders)]

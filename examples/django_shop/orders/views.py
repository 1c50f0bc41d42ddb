"""One view: with ATOMIC_REQUESTS the order and its task commit together."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from orders.jobs import send_mail
from orders.models import Order

from slotwise.contrib.django import schedule


@csrf_exempt
def orders(request: HttpRequest) -> JsonResponse:
    if request.method == "POST":
        order = Order.objects.create(email=request.GET["email"])
        schedule(send_mail, {"order": order.pk})
        return JsonResponse(order.pk, safe=False)
    return JsonResponse(list(Order.objects.order_by("pk").values()), safe=False)

"""A Flask application: a request inserts an order and schedules its mail in one transaction.

    cd examples/flask_shop
    export DATABASE_URL=postgresql://me@localhost/mine
    flask slotwise db upgrade
    gunicorn --workers 2 --preload 'app:create_app()'
    curl -X POST 'http://localhost:8000/orders?email=ann@example.com'
    curl http://localhost:8000/orders

Each process of gunicorn starts a worker with its first request. For processes that do nothing
else, leave ``worker=True`` out and run ``flask slotwise worker``.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from flask import Flask, request

from slotwise import JobRegistry, TaskContext, task
from slotwise.contrib.flask import Slotwise

engine = sa.create_engine(
    sa.make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+psycopg"),
    poolclass=sa.NullPool,  # connections of a pool must not be shared with a child after a fork
)
orders = sa.Table(
    "orders",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("email", sa.String, nullable=False),
    sa.Column("is_mailed", sa.Boolean, nullable=False, default=False),
)


@task(name="send-mail")
def send_mail(ctx: TaskContext[dict[str, int]]) -> None:
    """Mark the order in the transaction that completes the task: exactly once."""
    with engine.begin() as connection:
        connection.execute(
            sa.update(orders)
            .where(orders.c.id == ctx.data["order"])
            .values(is_mailed=True)
        )
        ctx.complete_in(connection)


slotwise = Slotwise(JobRegistry(tasks=[send_mail]), worker=True)


def create_app() -> Flask:
    """Build the application; ``flask slotwise`` finds it here, too."""
    app = Flask(__name__)
    slotwise.init_app(app)
    with engine.begin() as connection:
        orders.metadata.create_all(connection)

    @app.post("/orders")
    def create() -> str:
        with engine.begin() as connection:
            inserted = connection.execute(
                sa.insert(orders)
                .values(email=request.args["email"])
                .returning(orders.c.id)
            )
            id = inserted.scalar_one()
            slotwise.client.schedule(send_mail, {"order": id}, connection=connection)
        return str(id)

    @app.get("/orders")
    def list_orders() -> list[dict[str, object]]:
        with engine.connect() as connection:
            return [
                dict(row)
                for row in connection.execute(
                    sa.select(orders).order_by(orders.c.id)
                ).mappings()
            ]

    return app

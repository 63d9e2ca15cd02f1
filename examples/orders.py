"""A web app that enqueues in its own transaction: the order and its job exist together, or neither does.

    python examples/orders.py                                  # listens on http://127.0.0.1:8080
    curl -X POST 'http://127.0.0.1:8080/orders?item=tea'       # an order, and a receipt a moment later
    curl -X POST 'http://127.0.0.1:8080/orders?item=poison'    # refused after the job was enqueued: nothing is left
    curl http://127.0.0.1:8080/orders

The receipt is written through `ctx.transaction()`, so there is exactly one for each order, however often workers die.
`python examples/orders.py --self-test` makes these requests itself, prints the answers and ends.
"""

import asyncio
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

from kappa.engine import Client, Engine, JobContext, Lane
from kappa.engine.testing import working
from kappa.pg import Bounds, Pool
from kappa.pg.embedded import EmbeddedServer

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL);
CREATE TABLE IF NOT EXISTS receipts (order_id bigint PRIMARY KEY REFERENCES orders, text text NOT NULL);
"""


def declare(engine: Engine) -> None:
    engine.lane(Lane("orders", kinds=("receipt",), max_slots=4))

    @engine.job("receipt", idempotent=True)
    def receipt(ctx: JobContext, order_id: int) -> None:
        with ctx.transaction() as connection:
            connection.execute(
                "INSERT INTO receipts SELECT id, 'one ' || item || ', thank you' FROM orders WHERE id = %s", [order_id]
            )


def make_handler(pool: Pool, client: Client) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            item = parse_qs(urlsplit(self.path).query).get("item", [""])[0]
            try:
                with pool.transaction() as connection:
                    row = connection.execute("INSERT INTO orders (item) VALUES (%s) RETURNING id", [item]).fetchone()
                    assert row is not None
                    job = client.enqueue("receipt", row[0], connection=connection)
                    if item == "poison":
                        raise ValueError("we don't sell that")
                self.answer(201, {"order": row[0], "job": job.id})
            except ValueError as error:
                self.answer(422, {"error": str(error)})

        def do_GET(self) -> None:
            with pool.connection() as connection:
                rows = connection.execute(
                    "SELECT o.id, o.item, r.text FROM orders o LEFT JOIN receipts r ON r.order_id = o.id ORDER BY o.id"
                ).fetchall()
            self.answer(200, [{"order": order, "item": item, "receipt": text} for order, item, text in rows])

        def answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


def request(base: str, method: str, path: str) -> str:
    try:
        with urlopen(Request(base + path, method=method)) as answer:
            return answer.read().decode()
    except OSError as error:
        return f"{error}\n"


def self_test(base: str) -> None:
    print(request(base, "POST", "/orders?item=tea"), end="")
    print(request(base, "POST", "/orders?item=poison"), end="")
    while "thank you" not in (seen := request(base, "GET", "/orders")):
        time.sleep(0.05)
    print(seen, end="")


async def serve(engine: Engine, url: str, port: int, test: bool) -> None:
    with Pool(url, "web", Bounds(1, 5)) as pool, engine.client() as client:
        server = ThreadingHTTPServer(("127.0.0.1", port), make_handler(pool, client))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        print(f"listening on {base}, ctrl-C ends")
        try:
            async with working(engine):
                await (asyncio.to_thread(self_test, base) if test else asyncio.Event().wait())
        finally:
            server.shutdown()
            server.server_close()


def main() -> None:
    test = "--self-test" in sys.argv
    with EmbeddedServer(Path(".kappa-example"), say=print).hold("orders") as url:
        engine = Engine(url)
        declare(engine)
        engine.install()
        with engine.database.connect() as connection:
            connection.execute(TABLES)
        try:
            asyncio.run(serve(engine, url, 0 if test else 8080, test))
        except KeyboardInterrupt:
            print("bye")


if __name__ == "__main__":
    main()

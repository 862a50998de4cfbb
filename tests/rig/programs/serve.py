"""A web server on all addresses, which says how often it was asked, and counts meanwhile."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        Handler.asked += 1
        body = f"asked {Handler.asked}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("", 8080), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
now = 0
while True:
    now += 1
    Path("/new").write_text(f"{now}\n")
    Path("/new").rename("/count")
    time.sleep(0.02)

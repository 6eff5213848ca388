"""Collector of OpenTelemetry's traces: OTLP over gRPC and over HTTP."""

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.ports import reserve_port


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class CollectedSpan:
    """Span, with its attributes as a dictionary."""

    def __init__(self, span: Span) -> None:
        self.name, self.kind, self.status = span.name, Span.SpanKind.Name(span.kind), span.status
        self.trace, self.id, self.parent = (
            identifier.hex() for identifier in (span.trace_id, span.span_id, span.parent_span_id)
        )
        self.state = span.trace_state
        self.nanoseconds = span.end_time_unix_nano - span.start_time_unix_nano
        self.attributes = _values(span.attributes)


class Collector(TraceServiceServicer):
    """Receiver on two ports, as a context manager. It answers while `is_answering` is set."""

    def __init__(self, certificates: Path | None = None) -> None:
        """With a folder of certificates, its ports speak TLS, and clients need a certificate."""
        self._owned = ExitStack()
        self._certificates = certificates
        self.spans: list[CollectedSpan] = []
        self.resources: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.is_answering = threading.Event()
        self.is_answering.set()

    def __enter__(self) -> Self:
        self.grpc, self.http = (reserve_port(self._owned) for _ in range(2))
        server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        add_TraceServiceServicer_to_server(self, server)
        if self._certificates is None:
            server.add_insecure_port(f"127.0.0.1:{self.grpc}")
        else:
            server.add_secure_port(f"127.0.0.1:{self.grpc}", self._credentials())
        server.start()
        self._owned.callback(lambda: server.stop(0).wait())
        web = ThreadingHTTPServer(("127.0.0.1", self.http), self._handler())
        if self._certificates is not None:
            web.socket = self._context().wrap_socket(web.socket, server_side=True)
        self._owned.callback(web.server_close)
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        self._owned.callback(thread.join)
        self._owned.callback(web.shutdown)
        self._owned.callback(self.is_answering.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def Export(  # noqa: N802, the name is that of the protocol
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self._collect(request, dict(context.invocation_metadata()))
        return ExportTraceServiceResponse()

    def spans_named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def _credentials(self) -> grpc.ServerCredentials:
        key, chain, roots = (
            (self._certificates / name).read_bytes() for name in ("own.key", "own.crt", "ca.crt")
        )
        return grpc.ssl_server_credentials([(key, chain)], roots, require_client_auth=True)

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=self._certificates / "ca.crt"
        )
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._certificates / "own.crt", self._certificates / "own.key")
        return context

    def _collect(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        self.is_answering.wait()
        self.headers.append(headers)
        for resource in request.resource_spans:
            self.resources.append(_values(resource.resource.attributes))
            for scope in resource.scope_spans:
                self.spans += [CollectedSpan(span) for span in scope.spans]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = ExportTraceServiceRequest.FromString(body)
                collector._collect(request, headers | {":path": self.path})
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

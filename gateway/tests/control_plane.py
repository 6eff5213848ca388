"""Control plane for xDS, which answers like go-control-plane's snapshot cache, and its messages."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, struct_pb2

from support import poll
from support.ports import reserve_port

TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
NODE_ID = "envoy-ratelimit"
UNITS = {
    "UNKNOWN": 0,
    "SECOND": 1,
    "MINUTE": 2,
    "HOUR": 3,
    "DAY": 4,
    "MONTH": 5,
    "YEAR": 6,
    "WEEK": 7,
}
LIST = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
# Fields of each message: number, name, and the type with `*` for a list.
FIELDS = {
    "DiscoveryRequest": [
        (1, "version_info", "string"),
        (2, "node", "Node"),
        (3, "resource_names", "string*"),
        (4, "type_url", "string"),
        (5, "response_nonce", "string"),
        (6, "error_detail", "Status"),
    ],
    "Node": [
        (1, "id", "string"),
        (3, "metadata", "google.protobuf.Struct"),
        (6, "user_agent_name", "string"),
    ],
    "Status": [(1, "code", "int32"), (2, "message", "string")],
    "DiscoveryResponse": [
        (1, "version_info", "string"),
        (2, "resources", "google.protobuf.Any*"),
        (4, "type_url", "string"),
        (5, "nonce", "string"),
    ],
    "RateLimitConfig": [
        (1, "name", "string"),
        (2, "domain", "string"),
        (3, "descriptors", "RateLimitDescriptor*"),
    ],
    "RateLimitDescriptor": [
        (1, "key", "string"),
        (2, "value", "string"),
        (3, "rate_limit", "RateLimitPolicy"),
        (4, "descriptors", "RateLimitDescriptor*"),
        (5, "shadow_mode", "bool"),
        (6, "detailed_metric", "bool"),
        (7, "quota_mode", "bool"),
        (8, "metadata", "google.protobuf.Struct"),
    ],
    "RateLimitPolicy": [
        (1, "unit", "int32"),
        (2, "requests_per_unit", "uint32"),
        (3, "unlimited", "bool"),
        (4, "name", "string"),
        (5, "replaces", "RateLimitReplace*"),
    ],
    "RateLimitReplace": [(1, "name", "string")],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="xds.proto", package="test", syntax="proto3")
    file.dependency[:] = [any_pb2.DESCRIPTOR.name, struct_pb2.DESCRIPTOR.name]
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            added = message.field.add(name=field, number=number)
            base = kind.removesuffix("*")
            if base in ("string", "bool", "int32", "uint32"):
                added.type = getattr(added, f"TYPE_{base.upper()}")
            else:
                added.type_name = f".{base}" if "." in base else f".test.{base}"
            if kind.endswith("*"):
                added.label = LIST
    pool = descriptor_pool.Default()
    pool.Add(file)
    descriptors = [pool.FindMessageTypeByName(f"test.{name}") for name in FIELDS]
    return {each.name: message_factory.GetMessageClass(each) for each in descriptors}


_MESSAGES = _messages()


def limit(requests: int, unit: str = "DAY", **fields: object) -> dict[str, Any]:
    return {"unit": UNITS[unit], "requests_per_unit": requests, **fields}


def entry(key: str, value: str = "", *children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Create an entry of a descriptor. `limit` is its limit."""
    descriptor = {"key": key, "value": value, "descriptors": list(children), **fields}
    if (rate_limit := descriptor.pop("limit", None)) is not None:
        descriptor["rate_limit"] = rate_limit
    return descriptor


def resource(domain: str, *descriptors: dict[str, Any], name: str | None = None) -> any_pb2.Any:
    """Create the configuration of a domain, by default with the name of the domain."""
    config = _MESSAGES["RateLimitConfig"](
        name=domain if name is None else name, domain=domain, descriptors=descriptors
    )
    return any_pb2.Any(type_url=TYPE_URL, value=config.SerializeToString())


class _Stream:
    """Stream of a client: the request without a response, and the last response."""

    def __init__(self) -> None:
        self.pending_request: Any = None
        self.nonce = 0
        self.version = ""
        self.is_ended = False


class ControlPlane:
    """Server of the aggregated discovery service, with one snapshot for one node.

    A request is answered at once if its version differs from the version of the snapshot. A
    refused response is therefore sent again and again.
    """

    def __init__(self, owned: ExitStack, credentials: grpc.ServerCredentials | None = None) -> None:
        self.port = reserve_port(owned)
        self._credentials = credentials
        self._changed = threading.Condition()
        self._snapshot: tuple[str, list[any_pb2.Any]] | None = None
        self._server: grpc.Server | None = None
        self._version = 0
        self.type_url = TYPE_URL
        # Id of the only node that gets responses.
        self.node_id = NODE_ID
        # All requests that arrived, of all streams.
        self.requests: list[Any] = []
        # Headers of the last stream.
        self.headers: dict[str, str] = {}
        # Error messages by the version that they refuse.
        self._refusals: dict[str, str] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def start(self) -> None:
        options = [("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16), options=options)
        method = grpc.stream_stream_rpc_method_handler(
            self._serve,
            _MESSAGES["DiscoveryRequest"].FromString,
            _MESSAGES["DiscoveryResponse"].SerializeToString,
        )
        service = "envoy.service.discovery.v3.AggregatedDiscoveryService"
        handlers = {"StreamAggregatedResources": method}
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, handlers)]
        )
        if self._credentials is None:
            self._server.add_insecure_port(self.address)
        else:
            self._server.add_secure_port(self.address, self._credentials)
        self._server.start()

    def stop(self) -> None:
        """End all streams at once."""
        if self._server is not None:
            server, self._server = self._server, None
            server.stop(0)
            with self._changed:
                self._changed.notify_all()
            server.wait_for_termination(30)

    def restart_versions(self) -> None:
        """Forget the snapshot and count versions anew, as a restarted control plane does."""
        with self._changed:
            self._version, self._snapshot = 0, None

    def push(self, *resources: any_pb2.Any) -> str:
        """Set the snapshot and return its version."""
        with self._changed:
            self._version += 1
            self._snapshot = str(self._version), list(resources)
            self._changed.notify_all()
            return self._snapshot[0]

    def apply(self, *resources: any_pb2.Any) -> str:
        """Set the snapshot, and wait until the gateway has accepted it."""
        version = self.push(*resources)
        poll.until(lambda: self.accepted() == version, f"version {version} is accepted")
        return version

    def refusal(self, *resources: any_pb2.Any) -> str:
        """Set a snapshot, and return the message with which the gateway refuses it."""
        version = self.push(*resources)
        poll.until(lambda: version in self._refusals, f"version {version} is refused")
        return self._refusals[version]

    def accepted(self) -> str | None:
        """Return the version that the last ACK or NACK names as accepted."""
        with self._changed:
            replies = [request for request in self.requests if request.response_nonce]
            return replies[-1].version_info if replies else None

    def _serve(self, requests: Iterable[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.headers = dict(context.invocation_metadata())
        stream = _Stream()
        server = self._server
        reader = threading.Thread(target=self._read, args=(stream, requests), daemon=True)
        reader.start()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        stream.is_ended or self._server is not server or self._must_respond(stream)
                    )
                )
                if stream.is_ended or self._server is not server:
                    return
                version, resources = self._snapshot
                stream.pending_request, stream.version = None, version
                stream.nonce += 1
                response = _MESSAGES["DiscoveryResponse"](
                    version_info=version,
                    resources=resources,
                    type_url=self.type_url,
                    nonce=str(stream.nonce),
                )
            yield response

    def _must_respond(self, stream: _Stream) -> bool:
        return (
            stream.pending_request is not None
            and self._snapshot is not None
            and stream.pending_request.node.id == self.node_id
            and stream.pending_request.version_info != self._snapshot[0]
        )

    def _read(self, stream: _Stream, requests: Iterable[Any]) -> None:
        try:
            for request in requests:
                with self._changed:
                    self.requests.append(request)
                    if stream.nonce == 0 or request.response_nonce == str(stream.nonce):
                        stream.pending_request = request
                        if request.HasField("error_detail"):
                            self._refusals[stream.version] = request.error_detail.message
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        with self._changed:
            stream.is_ended = True
            self._changed.notify_all()

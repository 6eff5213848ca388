"""gRPC reflection, by which clients such as grpcurl discover the protocol."""

from collections.abc import Callable

from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from running import Gateway

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"


def test_client_without_the_protocol_sends_a_request(
    gateway: Gateway, policy: Callable[..., int]
) -> None:
    policy("api|user", "FIXED 1 1h")
    database = ProtoReflectionDescriptorDatabase(gateway.channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    method = DescriptorPool(database).FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
    request_type = message_factory.GetMessageClass(method.input_type)
    answer_type = message_factory.GetMessageClass(method.output_type)
    ask = gateway.channel.unary_unary(
        f"/{SERVICE}/ShouldRateLimit", request_type.SerializeToString, answer_type.FromString
    )
    request = request_type(domain="api")
    request.descriptors.add().entries.add(key="user", value="1")
    codes = [ask(request, timeout=30).overall_code for _ in range(2)]
    assert codes == [1, 2]

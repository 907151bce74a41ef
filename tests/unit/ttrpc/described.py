"""A service with an rpc of each kind, as protoc would describe it."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.wrappers_pb2 import Int64Value, StringValue


def describe(name: str) -> ServiceDescriptor:
    """test.NAME: Say, Count, Sum, Talk, one of each kind, and Broken and Missing, which take and return a number."""
    wrappers = "google/protobuf/wrappers.proto"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"test/{name.lower()}.proto",
        package="test",
        syntax="proto3",
        dependency=[wrappers],
    )
    service = file.service.add(name=name)
    for method, client_streams, server_streams in (
        ("Say", False, False),
        ("Count", False, True),
        ("Sum", True, False),
        ("Talk", True, True),
        ("Broken", False, False),
        ("Missing", False, False),
    ):
        kind = f".google.protobuf.{'StringValue' if method in ('Say', 'Talk') else 'Int64Value'}"
        service.method.add(
            name=method,
            input_type=kind,
            output_type=kind,
            client_streaming=client_streams,
            server_streaming=server_streams,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(StringValue.DESCRIPTOR.file.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    found: ServiceDescriptor = pool.FindServiceByName(f"test.{name}")
    return found


def text(value: str) -> StringValue:
    return StringValue(value=value)


def number(value: int) -> Int64Value:
    return Int64Value(value=value)

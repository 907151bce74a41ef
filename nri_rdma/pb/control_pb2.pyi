from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("pod", "last")
    POD_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    pod: str
    last: int
    def __init__(self, pod: _Optional[str] = ..., last: _Optional[int] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("sandbox_id", "pod", "container", "container_id", "annotations", "devices", "env", "pool", "cdi_device", "claims", "resource", "pid", "memlock", "indexes", "bundle")
    class AnnotationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class IndexesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ID_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    CDI_DEVICE_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MEMLOCK_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    sandbox_id: str
    pod: str
    container: str
    container_id: str
    annotations: _containers.ScalarMap[str, str]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceNode]
    env: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    cdi_device: str
    claims: _containers.RepeatedScalarFieldContainer[str]
    resource: str
    pid: int
    memlock: int
    indexes: _containers.ScalarMap[str, str]
    bundle: str
    def __init__(self, sandbox_id: _Optional[str] = ..., pod: _Optional[str] = ..., container: _Optional[str] = ..., container_id: _Optional[str] = ..., annotations: _Optional[_Mapping[str, str]] = ..., devices: _Optional[_Iterable[_Union[DeviceNode, _Mapping]]] = ..., env: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., cdi_device: _Optional[str] = ..., claims: _Optional[_Iterable[str]] = ..., resource: _Optional[str] = ..., pid: _Optional[int] = ..., memlock: _Optional[int] = ..., indexes: _Optional[_Mapping[str, str]] = ..., bundle: _Optional[str] = ...) -> None: ...

class DeviceNode(_message.Message):
    __slots__ = ("path", "major", "minor")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    path: str
    major: int
    minor: int
    def __init__(self, path: _Optional[str] = ..., major: _Optional[int] = ..., minor: _Optional[int] = ...) -> None: ...

class VerifyReply(_message.Message):
    __slots__ = ("complete", "refusal", "prove_within_ms")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PROVE_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    refusal: str
    prove_within_ms: int
    def __init__(self, complete: bool = ..., refusal: _Optional[str] = ..., prove_within_ms: _Optional[int] = ...) -> None: ...

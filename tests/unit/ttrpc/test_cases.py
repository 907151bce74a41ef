"""Go's conformance cases, and the test of ours that stands for each; a test that is renamed takes its line along."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[1]

CONNECTION, CHANNEL, SERVER, CLIENT = (
    "ttrpc/test_connection.py",
    "ttrpc/test_channel.py",
    "ttrpc/test_server.py",
    "ttrpc/test_client.py",
)
CLIENT_STREAM, HANDLER_STREAM, TYPED, FRAMES, WIRE_STREAMS, WIRE_CLIENT, WIRE_SERVER = (
    "ttrpc/test_clientstream.py",
    "ttrpc/test_handlerstream.py",
    "ttrpc/test_typed.py",
    "ttrpc/wire/test_frames.py",
    "ttrpc/wire/test_streams.py",
    "ttrpc/wire/test_client.py",
    "ttrpc/wire/test_server.py",
)
FRONTS, INBOX, WIRE_MESSAGES = "ttrpc/test_fronts.py", "ttrpc/test_inbox.py", "ttrpc/wire/test_messages.py"
MUX, SESSION = "wire/test_mux.py", "doors/nri/test_session_bytes.py"

TTRPC: dict[str, list[tuple[str, str]]] = {
    "TestReadWriteMessage": [(FRAMES, "test_byte_by_byte"), (FRAMES, "test_large_in_small_receives")],
    "TestMessageOversize": [(WIRE_CLIENT, "test_oversize_says_the_numbers_and_uses_no_id")],
    "TestServer, Echo": [
        (CONNECTION, "test_a_payload_comes_back"),
        (CONNECTION, "test_several_calls_on_one_connection"),
    ],
    "TestServerUnimplemented": [(CONNECTION, "test_statuses")],
    "TestServerShutdown": [(SERVER, "test_calls_in_flight_are_answered_and_nothing_new_is_taken")],
    "TestServerClose": [(FRONTS, "test_closing_without_grace_cuts_the_calls")],
    "TestImmediateServerShutdown": [(SERVER, "test_closing_before_and_without_serving")],
    "TestServerListenerClosed": [(SERVER, "test_a_listening_socket_that_somebody_else_shuts_hurts_nobody")],
    "TestOversizeCall": [(CONNECTION, "test_a_request_that_is_too_long_fails_here")],
    "TestClientEOF": [(CHANNEL, "test_the_end_of_the_peer_fails_waiting_and_next_calls")],
    "TestServerEOF": [(CONNECTION, "test_a_client_that_leaves_is_forgotten")],
    "TestServerRequestTimeout": [(CONNECTION, "test_the_handler_sees_what_was_called")],
    "TestServerConnectionsLeak": [(SERVER, "test_a_caller_that_has_gone_leaves_nothing")],
    "TestUserOnCloseWait": [
        (CLIENT, "test_it_runs_once_when_the_server_goes_while_nobody_calls"),
        (CLIENT, "test_close_waits_for_it"),
    ],
    "metadata": [
        (WIRE_SERVER, "test_metadata_is_lower_cased_and_repeated_keys_are_kept"),
        (WIRE_CLIENT, "test_metadata_keys_leave_in_lower_case"),
        (SERVER, "test_they_wrap_handlers_the_first_one_outermost"),  # Call.values(), a key that is not there
    ],
    "interceptors": [
        (SERVER, "test_they_wrap_handlers_the_first_one_outermost"),
        (CLIENT, "test_they_wrap_calls_and_streams_the_first_one_outermost"),
    ],
    "TestStreamClient": [(CLIENT_STREAM, "test_streams_and_unary_calls_share_a_connection")],
    "EchoStream": [(CLIENT_STREAM, "test_messages_both_ways_in_turn")],
    "SumStream": [(CLIENT_STREAM, "test_many_messages_are_summed_to_one_answer")],
    "DivideStream": [(CLIENT_STREAM, "test_one_request_is_divided_into_many_answers")],
    "EchoNull": [(CLIENT_STREAM, "test_empty_messages_are_messages")],
    "EchoNullStream": [(CLIENT_STREAM, "test_messages_sent_by_many_threads_all_come_before_the_end")],
    "EmptyPayloadStream": [(CLIENT_STREAM, "test_an_empty_request_is_a_request"), (TYPED, "test_many_replies")],
    "TestStreamHandlerContextCancelOnReturn": [
        (HANDLER_STREAM, "test_a_stream_is_cancelled_for_whoever_still_uses_it_when_its_handler_returns")
    ],
    "TestStreamNotConsumedDoesNotBlockConnection": [
        (HANDLER_STREAM, "test_a_stream_that_nobody_takes_does_not_block_the_connection"),
        (CLIENT_STREAM, "test_a_client_s_stream_that_nobody_takes_fails_and_calls_go_on"),
    ],
    "TestStreamFullOnServer": [(INBOX, "test_what_is_taken_makes_room")],
    "own: even id, id 0, reused and lower ids, 0x7f, broken requests, 4194305 bytes": [
        (FRONTS, "test_mistakes_of_the_caller_cost_one_stream"),
        (WIRE_SERVER, "test_protocol_errors_cost_one_stream"),
    ],
    "own: data on a dead stream": [(SERVER, "test_data_on_a_stream_that_was_answered")],
    "own: broken payload": [(TYPED, "test_requests_that_do_not_decode_are_internal_errors")],
    "own: response with a frame of no bytes": [
        (WIRE_MESSAGES, "test_empty_answer_is_an_answer"),
        (WIRE_MESSAGES, "test_we_send_the_same_empty_answer"),
    ],
    "own: concurrent answers out of order": [
        (FRONTS, "test_calls_are_answered_in_any_order"),
        (CHANNEL, "test_answers_out_of_order_find_their_callers"),
    ],
    "own: a late answer": [(FRONTS, "test_a_deadline_is_told_and_kept_and_a_late_answer_disturbs_nobody")],
    "own: a handler's exception": [(SERVER, "test_what_a_handler_raises_has_go_s_code")],
    "own: an oversized answer": [(SERVER, "test_an_answer_that_is_too_long_becomes_an_error")],
    "own: every frame of a stream in every state": [
        (WIRE_SERVER, "test_a_server_that_takes_messages"),
        (WIRE_CLIENT, "test_a_client_that_takes_messages"),
        (WIRE_STREAMS, "test_two_peers_that_keep_to_the_tables_understand_each_other"),
    ],
}

NRI_MUX: dict[str, list[tuple[str, str]]] = {
    "TestOpen": [
        (MUX, "test_writing_to_a_conn_that_does_not_exist_is_refused"),
        (MUX, "test_frames_of_unknown_conns_vanish"),
    ],
    "TestClose": [(MUX, "test_a_hostile_length_is_an_error_for_ever")],
    "TestDial, TestListenAccept": [(MUX, "test_both_conns_are_there_from_the_start")],
    "TestTransmittingData": [(MUX, "test_a_message_of_three_frames_comes_whole_and_the_next_one_too")],
    "conn and socketpair tests": [(SERVER, "test_a_connected_pair_by_number_at_both_ends")],
    "own: exact frame layout": [
        (MUX, "test_a_message_is_4096_bytes_and_then_the_rest"),
        (MUX, "test_no_first_frame_is_longer_than_a_go_reader_survives"),
    ],
    "own: unknown conn ids": [(MUX, "test_frames_of_unknown_conns_vanish")],
    "own: a frame split at every byte": [(MUX, "test_frames_are_split_at_every_offset_of_the_trunk")],
    "own: two messages in one frame": [(MUX, "test_two_ttrpc_messages_in_one_frame_are_two")],
    "own: one message in frames of one byte": [
        (MUX, "test_a_message_in_one_byte_frames_is_whole"),
        (SESSION, "test_a_large_message_in_the_smallest_pieces_holds_itself_only"),
    ],
    "own: empty frames": [(MUX, "test_empty_frames_vanish")],
    "own: length bound": [
        (MUX, "test_a_hostile_length_is_an_error_for_ever"),
        (SESSION, "test_a_hostile_length_ends_the_session"),
    ],
    "own: the end inside header or payload": [(SESSION, "test_the_end_inside_a_frame_ends_the_session")],
    "own: writes of two conns": [(MUX, "test_writes_of_two_conns_do_not_interleave")],
    "own: bounded queues": [(SESSION, "test_a_runtime_that_floods_and_does_not_read_is_not_read_either")],
}

ALL = [(case, place) for cases in (TTRPC, NRI_MUX) for case, places in cases.items() for place in places]


@pytest.mark.parametrize(("case", "place"), ALL, ids=[f"{case}: {test}" for case, (_, test) in ALL])
def test_the_case_has_its_test(case: str, place: tuple[str, str]) -> None:
    file, name = place
    tree = ast.parse((UNIT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{case} in {file}"

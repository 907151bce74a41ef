package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// command is one line of standard input. Calls and receives run beside each other; the rest is done in order.
type command struct {
	Op        string      `json:"op"` // call, open, send, close_send, receive, measure
	ID        int         `json:"id"` // names the call or stream in results
	Method    string      `json:"method"`
	Payload   []byte      `json:"payload"` // base64 of an encoded message
	TimeoutMS int64       `json:"timeout_ms"`
	Metadata  [][2]string `json:"metadata"`
	Client    bool        `json:"client"` // the stream is the client's to send on
	Server    bool        `json:"server"`
	Calls     int         `json:"calls"` // to measure
}

// result is one line of standard output.
type result struct {
	ID      int     `json:"id"`
	Op      string  `json:"op"`
	Code    int     `json:"code"`              // status of the call; -1 = no status, see Error
	Error   string  `json:"error,omitempty"`   // the text of the status, or of Go's error
	End     bool    `json:"end,omitempty"`     // the stream has ended well
	Payload []byte  `json:"payload"`           // base64 of an encoded message
	TookNS  []int64 `json:"took_ns,omitempty"` // of each measured call
}

type caller struct {
	client  *ttrpc.Client
	streams map[int]ttrpc.ClientStream
	output  *json.Encoder
	mutex   sync.Mutex // one result at a time
}

// call does what standard input says, until it ends.
func call(path string) error {
	connection, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	c := &caller{
		client:  ttrpc.NewClient(connection),
		streams: map[int]ttrpc.ClientStream{},
		output:  json.NewEncoder(os.Stdout),
	}
	defer c.client.Close()
	input := json.NewDecoder(os.Stdin)
	for {
		var next command
		if err := input.Decode(&next); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := c.do(next); err != nil {
			return err
		}
	}
}

func (c *caller) do(next command) error {
	switch next.Op {
	case "call":
		go func() { c.tell(c.unary(next)) }()
	case "receive":
		stream := c.streams[next.ID]
		go func() { c.tell(receive(next, stream)) }()
	case "open":
		c.tell(c.open(next))
	case "send":
		c.tell(outcome(next, c.streams[next.ID].SendMsg(raw(next.Payload))))
	case "close_send":
		c.tell(outcome(next, c.streams[next.ID].CloseSend()))
	case "measure":
		c.tell(c.measure(next))
	default:
		return fmt.Errorf("nobody knows how to %q", next.Op)
	}
	return nil
}

func (c *caller) unary(next command) result {
	ctx, cancel := c.context(next)
	defer cancel()
	answer := &emptypb.Empty{}
	err := c.client.Call(ctx, service, next.Method, raw(next.Payload), answer)
	return withPayload(outcome(next, err), answer)
}

func (c *caller) open(next command) result {
	description := &ttrpc.StreamDesc{StreamingClient: next.Client, StreamingServer: next.Server}
	var request any
	if !next.Client {
		request = raw(next.Payload)
	}
	stream, err := c.client.NewStream(context.Background(), description, service, next.Method, request)
	if err == nil {
		c.streams[next.ID] = stream
	}
	return outcome(next, err)
}

func receive(next command, stream ttrpc.ClientStream) result {
	message := &emptypb.Empty{}
	err := stream.RecvMsg(message)
	if errors.Is(err, io.EOF) {
		return result{ID: next.ID, Op: next.Op, End: true}
	}
	return withPayload(outcome(next, err), message)
}

// measure makes the calls one after the other.
func (c *caller) measure(next command) result {
	request := raw(next.Payload)
	took := make([]int64, 0, next.Calls)
	for range next.Calls {
		answer := &emptypb.Empty{}
		start := time.Now()
		if err := c.client.Call(context.Background(), service, next.Method, request, answer); err != nil {
			return outcome(next, err)
		}
		took = append(took, time.Since(start).Nanoseconds())
	}
	return result{ID: next.ID, Op: next.Op, TookNS: took}
}

func (c *caller) context(next command) (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if len(next.Metadata) > 0 {
		metadata := ttrpc.MD{}
		for _, pair := range next.Metadata {
			metadata.Append(pair[0], pair[1])
		}
		ctx = ttrpc.WithMetadata(ctx, metadata)
	}
	if next.TimeoutMS == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(next.TimeoutMS)*time.Millisecond)
}

func (c *caller) tell(r result) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	fail(c.output.Encode(r))
}

// raw is a message that is these bytes: every field is one that Empty does not know, and keeps.
func raw(payload []byte) proto.Message {
	message := &emptypb.Empty{}
	message.ProtoReflect().SetUnknown(slices.Clone(payload))
	return message
}

func withPayload(r result, message *emptypb.Empty) result {
	if r.Code == 0 {
		r.Payload = message.ProtoReflect().GetUnknown()
	}
	return r
}

func outcome(next command, err error) result {
	r := result{ID: next.ID, Op: next.Op}
	if err == nil {
		return r
	}
	r.Code, r.Error = -1, err.Error()
	if told, ok := status.FromError(err); ok {
		r.Code, r.Error = int(told.Code()), told.Message()
	}
	return r
}

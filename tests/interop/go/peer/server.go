package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const service = "nri_rdma.interop.v1.Peer"

// serve answers on a socket until standard input ends.
func serve(path string) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	held := &held{gates: map[string]chan struct{}{}}
	server.RegisterService(service, &ttrpc.ServiceDesc{
		Methods: map[string]ttrpc.Method{
			"Echo":     unary(echo),
			"Zeros":    unary(zeros),
			"Fail":     unary(failWith),
			"Nothing":  unary(nothing),
			"Metadata": unary(metadata),
			"Deadline": unary(deadline),
			"Hold":     unary(held.hold),
			"Release":  unary(held.release),
		},
		Streams: map[string]ttrpc.Stream{
			"Sum":        {Handler: sum, StreamingClient: true},
			"Count":      {Handler: count, StreamingServer: true},
			"CountFail":  {Handler: countFail, StreamingServer: true},
			"EchoStream": {Handler: echoStream, StreamingClient: true, StreamingServer: true},
		},
	})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(`{"ready": true}`)
	return server.Serve(context.Background(), listener)
}

// unary makes a ttrpc method of a function over two messages.
func unary[In any, Message interface {
	*In
	proto.Message
}, Out any](answer func(context.Context, Message) (Out, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		var request Message = new(In)
		if err := unmarshal(request); err != nil {
			return nil, err
		}
		return answer(ctx, request)
	}
}

func echo(_ context.Context, request *wrapperspb.BytesValue) (*wrapperspb.BytesValue, error) {
	return request, nil
}

func zeros(_ context.Context, size *wrapperspb.Int64Value) (*wrapperspb.BytesValue, error) {
	return wrapperspb.Bytes(make([]byte, size.Value)), nil
}

// failWith fails with "<code> <text>"; without a number in front, as a plain error of Go does.
func failWith(_ context.Context, request *wrapperspb.StringValue) (*emptypb.Empty, error) {
	number, text, _ := strings.Cut(request.Value, " ")
	code, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return nil, errors.New(request.Value)
	}
	return nil, status.Error(codes.Code(code), text)
}

func nothing(context.Context, *emptypb.Empty) (*emptypb.Empty, error) {
	return nil, nil
}

// metadata returns the values of a key, one per line.
func metadata(ctx context.Context, key *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	all, _ := ttrpc.GetMetadata(ctx)
	values, _ := all.Get(key.Value)
	return wrapperspb.String(strings.Join(values, "\n")), nil
}

// deadline returns the nanoseconds that the caller still waits; -1 = for ever.
func deadline(ctx context.Context, _ *emptypb.Empty) (*wrapperspb.Int64Value, error) {
	end, set := ctx.Deadline()
	if !set {
		return wrapperspb.Int64(-1), nil
	}
	return wrapperspb.Int64(time.Until(end).Nanoseconds()), nil
}

// held keeps calls waiting until somebody releases their key.
type held struct {
	mutex sync.Mutex
	gates map[string]chan struct{}
}

func (h *held) gate(key string) chan struct{} {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.gates[key] == nil {
		h.gates[key] = make(chan struct{})
	}
	return h.gates[key]
}

func (h *held) hold(ctx context.Context, key *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	select {
	case <-h.gate(key.Value):
		return key, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (h *held) release(_ context.Context, key *wrapperspb.StringValue) (*emptypb.Empty, error) {
	close(h.gate(key.Value))
	return &emptypb.Empty{}, nil
}

func sum(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	total := &wrapperspb.Int64Value{}
	for {
		var number wrapperspb.Int64Value
		switch err := stream.RecvMsg(&number); {
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return nil, err
		}
		total.Value += number.Value
	}
}

func count(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	_, err := counted(stream)
	return nil, err
}

func countFail(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	end, err := counted(stream)
	if err != nil {
		return nil, err
	}
	return nil, status.Errorf(codes.Aborted, "no number after %d", end)
}

func counted(stream ttrpc.StreamServer) (int64, error) {
	var end wrapperspb.Int64Value
	if err := stream.RecvMsg(&end); err != nil {
		return 0, err
	}
	for number := int64(0); number < end.Value; number++ {
		if err := stream.SendMsg(wrapperspb.Int64(number)); err != nil {
			return 0, err
		}
	}
	return end.Value, nil
}

func echoStream(_ context.Context, stream ttrpc.StreamServer) (any, error) {
	for {
		var message wrapperspb.BytesValue
		switch err := stream.RecvMsg(&message); {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return nil, err
		}
		if err := stream.SendMsg(&message); err != nil {
			return nil, err
		}
	}
}

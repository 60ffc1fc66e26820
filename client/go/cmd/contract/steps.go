package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/health/grpc_health_v1" // registers the messages of Health/Check
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	lineside "github.com/lineside/lineside/client/go"
	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// do is what a step is answered with; the error is of the runner, never of a call.
func (s step) do(client *lineside.Client) (any, error) {
	ctx, cancel := s.context()
	defer cancel()
	switch {
	case s.Dispatch != nil:
		return dispatch(ctx, client, s.Dispatch)
	case s.Batch != nil:
		return batch(ctx, client, s.Batch)
	case s.Frames != nil:
		return frames(ctx, client, s.Frames)
	case s.Unary != nil:
		return s.Unary.do(ctx, client)
	case s.Parallel != nil:
		return parallel(client, s.Parallel)
	}
	return nil, errors.New("no such step")
}

// context has the step's headers, remote parent, deadline and cancellation.
func (s step) context() (context.Context, context.CancelFunc) {
	ctx := context.Background()
	if s.Parent != "" {
		carrier := propagation.MapCarrier{"traceparent": s.Parent}
		ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	}
	for name, value := range s.Metadata {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	return s.bounded(ctx)
}

func (s step) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	cancel := func() {}
	if s.TimeoutS != 0 {
		ctx, cancel = context.WithTimeout(ctx, seconds(s.TimeoutS))
	}
	if s.CancelAfterS == 0 {
		return ctx, cancel
	}
	ctx, giveUp := context.WithCancel(ctx)
	time.AfterFunc(seconds(s.CancelAfterS), giveUp)
	return ctx, func() { giveUp(); cancel() }
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }

func parallel(client *lineside.Client, steps []step) (any, error) {
	answers, faults := make([]any, len(steps)), make([]error, len(steps))
	var all sync.WaitGroup
	for number, one := range steps {
		all.Go(func() { answers[number], faults[number] = one.do(client) })
	}
	all.Wait()
	return answers, errors.Join(faults...)
}

// dispatch is one call by the client's own function.
func dispatch(ctx context.Context, client *lineside.Client, text json.RawMessage) (any, error) {
	call := &pb.ToolCall{}
	if err := protojson.Unmarshal(text, call); err != nil {
		return nil, err
	}
	answer, err := client.Dispatch(ctx, call)
	if failure, failed := lineside.AsError(err); failed {
		return failedCall(failure)
	}
	return succeeded(answer)
}

// batch is all calls on one stream by the client's own function.
func batch(ctx context.Context, client *lineside.Client, texts []json.RawMessage) (any, error) {
	read, err := toolCalls(texts)
	if err != nil {
		return nil, err
	}
	calls := make(chan *pb.ToolCall, len(read))
	for _, call := range read {
		calls <- call
	}
	close(calls)
	told := newStream()
	for result := range client.Batch(ctx, calls) {
		failure, _ := lineside.AsError(result.Err)
		if err := told.item(result.Call.GetItemId(), result.Answer, failure); err != nil {
			return nil, err
		}
	}
	if len(told.Items) < len(read) {
		ended := status.FromContextError(ctx.Err())
		told.Code, told.Message = codeName(ended.Code()), ended.Message()
	}
	return told, nil
}

// frames are written by the stub as they are, then its half of the stream is closed.
func frames(ctx context.Context, client *lineside.Client, texts [][]json.RawMessage) (any, error) {
	requests := make([]*pb.DispatchBatchRequest, len(texts))
	for number, frame := range texts {
		calls, err := toolCalls(frame)
		if err != nil {
			return nil, err
		}
		requests[number] = &pb.DispatchBatchRequest{Calls: calls}
	}
	told := newStream()
	stream, err := pb.NewDispatchServiceClient(client.Conn()).DispatchBatch(withTrace(ctx))
	if err != nil {
		told.end(err)
		return told, nil
	}
	go write(stream, requests)
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return told, nil
		}
		if err != nil {
			told.end(err)
			return told, nil
		}
		if err := told.hear(response); err != nil {
			return nil, err
		}
	}
}

// write ends when all is written, or with the stream; Recv tells why that ended.
func write(stream pb.DispatchService_DispatchBatchClient, requests []*pb.DispatchBatchRequest) {
	for _, request := range requests {
		if stream.Send(request) != nil {
			return
		}
	}
	_ = stream.CloseSend() // never fails
}

// do is one RPC by the stub, of a method that the protos know or of any other.
func (u unary) do(ctx context.Context, client *lineside.Client) (any, error) {
	request, response, err := u.messages()
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(u.Request, request); err != nil {
		return nil, err
	}
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lineside.DefaultTimeout)
		defer cancel()
	}
	var trailer metadata.MD
	if err := client.Conn().Invoke(withTrace(ctx), "/"+u.Method, request, response, grpc.Trailer(&trailer)); err != nil {
		return failed(lineside.FromError(err, trailer))
	}
	return succeeded(response)
}

// messages are those of the method, or empty ones where nobody knows it.
func (u unary) messages() (request, response proto.Message, err error) {
	name := protoreflect.FullName(strings.ReplaceAll(u.Method, "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	method, known := found.(protoreflect.MethodDescriptor)
	if err != nil || !known {
		return &emptypb.Empty{}, &emptypb.Empty{}, nil
	}
	asks, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return nil, nil, err
	}
	gives, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		return nil, nil, err
	}
	return asks.New().Interface(), gives.New().Interface(), nil
}

// withTrace sends the parent along; the client's own functions do that by themselves.
func withTrace(ctx context.Context) context.Context {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for name, value := range carrier {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	return ctx
}

func toolCalls(texts []json.RawMessage) ([]*pb.ToolCall, error) {
	calls := make([]*pb.ToolCall, len(texts))
	for number, text := range texts {
		calls[number] = &pb.ToolCall{}
		if err := protojson.Unmarshal(text, calls[number]); err != nil {
			return nil, fmt.Errorf("call %d: %w", number, err)
		}
	}
	return calls, nil
}

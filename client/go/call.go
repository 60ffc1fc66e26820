package lineside

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// Call makes a call of a tool. Arguments are whatever encoding/json makes an object of, nil for none; they go as JSON
// text, which keeps 64-bit integers and big numbers exact, and the answer's result comes as JSON text too.
func Call(tool string, arguments any, options ...CallOption) (*pb.ToolCall, error) {
	if arguments == nil {
		arguments = struct{}{}
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	call := &pb.ToolCall{Tool: tool, ArgumentForm: &pb.ToolCall_ArgumentsJson{ArgumentsJson: text}}
	for _, option := range options {
		option(call)
	}
	return call, nil
}

// CallOption sets a field of a call; every other one can be set on it directly.
type CallOption func(*pb.ToolCall)

// WithKey makes repeating the call harmless: while its record is kept, the service runs it once and answers again.
func WithKey(key string) CallOption {
	return func(call *pb.ToolCall) { call.IdempotencyKey = &key }
}

// WithTimeout bounds the whole call; the context's deadline does so too, and the earlier one counts.
func WithTimeout(timeout time.Duration) CallOption {
	return func(call *pb.ToolCall) { call.CallTimeout = durationpb.New(timeout) }
}

// WithAttemptTimeout bounds one attempt; it can only shorten the tool's own.
func WithAttemptTimeout(timeout time.Duration) CallOption {
	return func(call *pb.ToolCall) { call.AttemptTimeout = durationpb.New(timeout) }
}

// WithTraceOf makes the call part of the trace of ctx, for calls of a batch that come from several traces. A Dispatch, and
// the other calls of a batch, belong to the trace of the context they are given.
func WithTraceOf(ctx context.Context) CallOption {
	trace := traceOf(ctx)
	return func(call *pb.ToolCall) {
		if parent := trace.Get("traceparent"); parent != "" {
			call.TraceContext = &pb.TraceContext{Traceparent: parent, Tracestate: trace.Get("tracestate")}
		}
	}
}

// Result decodes the result of an answer to a call that Call made. For numbers beyond 2^53 choose a type that holds them:
// int64, *big.Int, json.Number or json.RawMessage; in an any they become float64.
func Result[T any](answer *pb.ToolAnswer) (T, error) {
	var result T
	err := json.Unmarshal(answer.GetResultJson(), &result)
	return result, err
}

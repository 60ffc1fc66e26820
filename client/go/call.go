package lineside

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// Call makes a call of a tool. Arguments go as JSON text, which keeps 64-bit integers and big numbers exact; the answer's
// result comes as JSON text too.
func Call(tool string, arguments any, options ...CallOption) (*pb.ToolCall, error) {
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

// Result decodes the result of an answer to a call that Call made.
func Result[T any](answer *pb.ToolAnswer) (T, error) {
	var result T
	err := json.Unmarshal(answer.GetResultJson(), &result)
	return result, err
}

package lineside

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

func TestAnAnswerKeepsBigNumbersExact(t *testing.T) {
	c := client(t, address)
	call := mustCall(t, "echo", args{"value": json.RawMessage("[9007199254740993, 1e2, null, \"\u00e9\"]")})
	answer, err := c.Dispatch(within(t, 10*time.Second), call)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(answer.GetResultJson()); got != "[9007199254740993,100.0,null,\"\u00e9\"]" {
		t.Errorf("result %s", got)
	}
	if answer.GetSource() != pb.Source_SOURCE_EXECUTED || answer.GetAttempts() != 1 {
		t.Errorf("%v after %d attempts", answer.GetSource(), answer.GetAttempts())
	}
}

func TestAKeyIsRunOnce(t *testing.T) {
	c := client(t, address)
	call := mustCall(t, "book", args{"seat": "1A"}, WithKey("trip-1"))
	first, err := c.Dispatch(within(t, 10*time.Second), call)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Dispatch(within(t, 10*time.Second), call)
	if err != nil {
		t.Fatal(err)
	}
	result, err := Result[map[string]int](again)
	if err != nil || result["effects"] != 1 || again.GetCallId() != first.GetCallId() {
		t.Errorf("%v, %v, call ids %s and %s", result, err, first.GetCallId(), again.GetCallId())
	}
	if again.GetSource() != pb.Source_SOURCE_REPLAYED {
		t.Errorf("source %v", again.GetSource())
	}
}

func TestAToolThatSaysNoIsAnAnswer(t *testing.T) {
	answer, err := client(t, address).Dispatch(within(t, 10*time.Second), mustCall(t, "refuse", args{"why": "sold out"}))
	if err != nil || !answer.GetToolError() || !strings.Contains(string(answer.GetResultJson()), "sold out") {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestCancellingGivesTheCallUp(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	_, err := client(t, address).Dispatch(ctx, mustCall(t, "hang", args{}))
	if failure, ok := AsError(err); !ok || failure.Code != codes.Canceled {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestTheTraceGoesAlong(t *testing.T) {
	ctx, id := traced(within(t, 10*time.Second), 1)
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "garbage")
	answer, err := client(t, address).Dispatch(ctx, mustCall(t, "echo", args{"value": 1}))
	if err != nil || answer.GetTraceId() != id {
		t.Errorf("trace %s, %v", answer.GetTraceId(), err)
	}
}

func TestCallsOfABatchMayHaveTracesOfTheirOwn(t *testing.T) {
	ctx, ofStream := traced(within(t, 10*time.Second), 1)
	other, ofCall := traced(context.Background(), 2)
	calls := make(chan *pb.ToolCall, 2)
	calls <- mustCall(t, "echo", args{"value": 1})
	calls <- mustCall(t, "echo", args{"value": 1}, WithTraceOf(other))
	close(calls)
	results := collect(t, client(t, address).Batch(ctx, calls), 2)
	if first, second := results[0].Answer.GetTraceId(), results[1].Answer.GetTraceId(); first != ofStream || second != ofCall {
		t.Errorf("traces %s and %s", first, second)
	}
}

func TestACallMayHaveNoArguments(t *testing.T) {
	call := mustCall(t, "hang", nil, WithTimeout(100*time.Millisecond), WithAttemptTimeout(50*time.Millisecond))
	_, err := client(t, address).Dispatch(within(t, 10*time.Second), call)
	if failure, ok := AsError(err); !ok || failure.Kind != pb.ErrorKind_ERROR_KIND_TIMEOUT {
		t.Errorf("%v", err)
	}
}

// traced is within a sampled remote span; its trace's id as text.
func traced(ctx context.Context, number byte) (context.Context, string) {
	id := trace.TraceID{number, 2, 3}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled})
	return trace.ContextWithSpanContext(ctx, span), id.String()
}

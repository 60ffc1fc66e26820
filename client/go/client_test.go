package lineside

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

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
	id := trace.TraceID{1, 2, 3}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(within(t, 10*time.Second), span)
	answer, err := client(t, address).Dispatch(ctx, mustCall(t, "echo", args{"value": 1}))
	if err != nil || answer.GetTraceId() != id.String() {
		t.Errorf("trace %s, %v", answer.GetTraceId(), err)
	}
}

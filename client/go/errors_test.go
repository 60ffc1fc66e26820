package lineside

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

func TestErrorsAreTyped(t *testing.T) {
	c := client(t, address)
	other := mustCall(t, "book", args{"seat": "2B"}, WithKey("trip-2"))
	if _, err := c.Dispatch(within(t, 10*time.Second), other); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		call    *pb.ToolCall
		timeout time.Duration
		code    codes.Code
		kind    pb.ErrorKind
		outcome pb.Outcome
		detail  func(*Error) bool
	}{
		"arguments": {mustCall(t, "book", args{"seat": 7}), 10 * time.Second, codes.InvalidArgument,
			pb.ErrorKind_ERROR_KIND_SCHEMA, pb.Outcome_OUTCOME_NOT_RUN,
			func(e *Error) bool { return e.BadRequest.GetFieldViolations()[0].GetField() == "/seat" }},
		"tool": {mustCall(t, "bok", args{}), 10 * time.Second, codes.NotFound,
			pb.ErrorKind_ERROR_KIND_NOT_FOUND, pb.Outcome_OUTCOME_NOT_RUN,
			func(e *Error) bool { return e.Resource != nil && strings.Contains(e.Message, "book") }},
		"key": {mustCall(t, "book", args{"seat": "2C"}, WithKey("trip-2")), 10 * time.Second, codes.FailedPrecondition,
			pb.ErrorKind_ERROR_KIND_KEY_REUSED, pb.Outcome_OUTCOME_NOT_RUN,
			func(e *Error) bool { return len(e.Precondition.GetViolations()) == 1 }},
		"timeout": {mustCall(t, "hang", args{}, WithTimeout(300*time.Millisecond)), 10 * time.Second, codes.DeadlineExceeded,
			pb.ErrorKind_ERROR_KIND_TIMEOUT, pb.Outcome_OUTCOME_UNKNOWN,
			func(e *Error) bool { return e.Dispatch.GetAttempts() == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Dispatch(within(t, test.timeout), test.call)
			failure, ok := AsError(err)
			if !ok {
				t.Fatalf("not an *Error: %v", err)
			}
			if failure.Code != test.code || failure.Kind != test.kind || failure.Outcome != test.outcome {
				t.Errorf("%s %s %s: %v", failure.Code, failure.Kind, failure.Outcome, err)
			}
			if failure.Info.GetDomain() != "lineside" || !test.detail(failure) {
				t.Errorf("details of %+v", failure)
			}
		})
	}
}

func TestHintsAndQuotasAreTyped(t *testing.T) {
	c := client(t, address)
	_, err := c.Dispatch(within(t, 10*time.Second), mustCall(t, "flaky", args{"retry_after_s": 7}))
	failure, ok := AsError(err)
	if !ok || failure.Kind != pb.ErrorKind_ERROR_KIND_TRANSIENT {
		t.Fatalf("%v", err)
	}
	if after, known := failure.RetryAfter(); !known || after < 7*time.Second {
		t.Errorf("retry after %v, %v: %+v", after, known, failure.Retry)
	}
	if again, said := failure.Pushback(); !said || again >= 0 {
		t.Errorf("pushback %v, %v", again, said)
	}
	call := mustCall(t, "echo", args{"value": 1})
	call.BudgetToolCallsRemaining = new(int32)
	_, err = c.Dispatch(within(t, 10*time.Second), call)
	failure, ok = AsError(err)
	if !ok || failure.Kind != pb.ErrorKind_ERROR_KIND_BUDGET_EXCEEDED || failure.Code != codes.ResourceExhausted {
		t.Fatalf("%v", err)
	}
	if subject := failure.Quota.GetViolations()[0].GetSubject(); subject != "budget_tool_calls_remaining" {
		t.Errorf("quota of %q", subject)
	}
	if _, known := failure.RetryAfter(); known {
		t.Error("a spent budget has no hint")
	}
}

func TestAnErrorIsAStatusWithItsDetailsToo(t *testing.T) {
	_, err := client(t, address).Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{"seat": 7}))
	wrapped := fmt.Errorf("booking: %w", err)
	if status.Code(wrapped) != codes.InvalidArgument || len(status.Convert(wrapped).Details()) != 3 {
		t.Errorf("%v, details %v", status.Code(wrapped), status.Convert(wrapped).Details())
	}
	if failure, ok := AsError(wrapped); !ok || failure.Kind != pb.ErrorKind_ERROR_KIND_SCHEMA {
		t.Errorf("%v", failure)
	}
	if _, ok := AsError(errors.New("another")); ok {
		t.Error("taken for an *Error")
	}
}

func TestWhatABareStatusLeavesKnown(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		outcome pb.Outcome
	}{
		"refused at the door":   {status.Error(codes.Unauthenticated, "who?"), pb.Outcome_OUTCOME_NOT_RUN},
		"no such method":        {status.Error(codes.Unimplemented, "unknown method"), pb.Outcome_OUTCOME_NOT_RUN},
		"reset in between":      {status.Error(codes.Internal, "stream terminated by RST_STREAM"), pb.Outcome_OUTCOME_UNKNOWN},
		"too late on this side": {context.DeadlineExceeded, pb.Outcome_OUTCOME_UNKNOWN},
		"broken under way":      {status.Error(codes.Unavailable, `connection error: desc = "error reading from server: EOF"`), pb.Outcome_OUTCOME_UNKNOWN},
	} {
		t.Run(name, func(t *testing.T) {
			if failure := FromError(test.err, nil); failure.Outcome != test.outcome || failure.Dispatch != nil {
				t.Errorf("%v", failure)
			}
		})
	}
}

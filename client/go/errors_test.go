package lineside

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

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

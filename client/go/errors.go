package lineside

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// Error is how a call ended that has no answer. Kind is unspecified when the error was made by gRPC itself or by
// something between: a lost connection, a deadline that passed on this side.
//
// It travels wrapped or not; AsError finds it. Before sending anything again look at Outcome, not at Kind.
type Error struct {
	Code    codes.Code
	Message string
	Kind    pb.ErrorKind
	// Outcome tells whether the tool took effect: NOT_RUN, DONE, UNKNOWN or IN_PROGRESS.
	Outcome pb.Outcome
	// Dispatch is the service's own account: attempts, call id, trace id, what a plan should do next. Nil without one.
	Dispatch *pb.DispatchError

	// The standard details; nil where they do not apply.
	Info         *errdetails.ErrorInfo
	BadRequest   *errdetails.BadRequest
	Retry        *errdetails.RetryInfo
	Quota        *errdetails.QuotaFailure
	Precondition *errdetails.PreconditionFailure
	Resource     *errdetails.ResourceInfo

	pushback *time.Duration // what the service says about sending again; negative: never
	said     *spb.Status    // as it came; nil when this side made the error
}

// AsError finds the *Error in err.
func AsError(err error) (*Error, bool) {
	var failure *Error
	return failure, errors.As(err, &failure)
}

// Error says what happened, and to which effect.
func (e *Error) Error() string {
	if e.Dispatch == nil {
		return fmt.Sprintf("lineside: %s: %s (outcome %s)", e.Code, e.Message, e.Outcome)
	}
	return fmt.Sprintf("lineside: %s after %d attempts: %s (outcome %s)", e.Kind, e.Dispatch.GetAttempts(), e.Message, e.Outcome)
}

// GRPCStatus is the status with its details, for status.FromError and status.Code.
func (e *Error) GRPCStatus() *status.Status {
	if e.said != nil {
		return status.FromProto(e.said)
	}
	return status.New(e.Code, e.Message)
}

// IsLost tells whether the connection broke, or never came about: nobody of the service said anything.
func (e *Error) IsLost() bool { return e.Code == codes.Unavailable && e.Dispatch == nil }

// isDropped tells of a CANCELLED without a word why: gRPC turned the RPC away before the service saw it, or a stopping
// service let it drop; or this side cancelled, which its context knows.
func (e *Error) isDropped() bool { return e.Code == codes.Canceled && e.Dispatch == nil }

// RetryAfter is the earliest time at which a repeat can help; false when nobody knows.
func (e *Error) RetryAfter() (time.Duration, bool) {
	if e.Retry == nil {
		return 0, false
	}
	return e.Retry.GetRetryDelay().AsDuration(), true
}

// Pushback is what the service said about sending the same request again: after that time, or, negative, never. False
// when it said nothing. Dispatch and Batch heed it by themselves.
func (e *Error) Pushback() (time.Duration, bool) {
	if e.pushback == nil {
		return 0, false
	}
	return *e.pushback, true
}

// sinceLost is the error as it reads when an earlier sending was lost on its way, its outcome open.
func (e *Error) sinceLost() *Error {
	if e.Dispatch.GetCallId() != "" || e.Outcome != pb.Outcome_OUTCOME_NOT_RUN {
		return e
	}
	open := *e
	open.Outcome = pb.Outcome_OUTCOME_UNKNOWN
	return &open
}

// FromError reads how an RPC of the stubs failed: its error, and its trailer where there is one (grpc.Trailer).
func FromError(err error, trailer metadata.MD) *Error {
	failure := FromStatus(statusOf(err))
	if values := trailer.Get("grpc-retry-pushback-ms"); len(values) > 0 {
		millis, bad := strconv.Atoi(values[0])
		if bad != nil {
			millis = -1 // gRFC A6: what cannot be read means "do not"
		}
		pushback := time.Duration(millis) * time.Millisecond
		failure.pushback = &pushback
	}
	return failure
}

// statusOf also knows a context's own error, which the stubs give back where nothing was sent.
func statusOf(err error) *spb.Status {
	if said, ok := status.FromError(err); ok {
		return said.Proto()
	}
	return status.FromContextError(err).Proto()
}

// FromStatus reads a status with details; the items of a batch carry theirs in the message.
func FromStatus(said *spb.Status) *Error {
	failure := &Error{Code: codes.Code(said.GetCode()), Message: said.GetMessage(), said: said}
	for _, detail := range said.GetDetails() {
		message, err := detail.UnmarshalNew()
		if err != nil {
			continue // a detail of a later version
		}
		switch detail := message.(type) {
		case *pb.DispatchError:
			failure.Dispatch = detail
			failure.Kind, failure.Outcome = detail.GetKind(), detail.GetOutcome()
		case *errdetails.ErrorInfo:
			failure.Info = detail
		case *errdetails.BadRequest:
			failure.BadRequest = detail
		case *errdetails.RetryInfo:
			failure.Retry = detail
		case *errdetails.QuotaFailure:
			failure.Quota = detail
		case *errdetails.PreconditionFailure:
			failure.Precondition = detail
		case *errdetails.ResourceInfo:
			failure.Resource = detail
		}
	}
	if failure.Dispatch == nil {
		failure.Outcome = bareOutcome(failure.Code, failure.Message)
	}
	return failure
}

// neverSent begins gRPC's texts for what this side could not send at all. Should a release word it otherwise, the
// outcome reads UNKNOWN instead of NOT_RUN: less use, still true.
var neverSent = []string{
	`connection error: desc = "transport: Error while dialing`,
	`connection error: desc = "transport: authentication handshake failed`,
	`connection error: desc = "error reading server preface`,
	"name resolver error",
	"trying to send message larger than max",
	"header list size to send violates",
}

// bareOutcome is what a status without details leaves known: what was never sent, or was refused before it was read,
// did not run.
func bareOutcome(code codes.Code, message string) pb.Outcome {
	begins := func(words string) bool { return strings.HasPrefix(message, words) }
	if isRefusedAtTheDoor(code) || slices.ContainsFunc(neverSent, begins) {
		return pb.Outcome_OUTCOME_NOT_RUN
	}
	return pb.Outcome_OUTCOME_UNKNOWN
}

func isRefusedAtTheDoor(code codes.Code) bool {
	return code == codes.Unauthenticated || code == codes.PermissionDenied || code == codes.Unimplemented
}

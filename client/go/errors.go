package lineside

import (
	"fmt"
	"strconv"
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
}

// Error says what happened, and to which effect.
func (e *Error) Error() string {
	if e.Dispatch == nil {
		return fmt.Sprintf("lineside: %s: %s (outcome %s)", e.Code, e.Message, e.Outcome)
	}
	return fmt.Sprintf("lineside: %s after %d attempts: %s (outcome %s)", e.Kind, e.Dispatch.GetAttempts(), e.Message, e.Outcome)
}

// GRPCStatus lets status.FromError and status.Code see through it.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// IsLost tells whether the connection broke: nobody of the service said anything.
func (e *Error) IsLost() bool { return e.Code == codes.Unavailable && e.Dispatch == nil }

// RetryAfter is the earliest time at which a repeat can help; false when nobody knows.
func (e *Error) RetryAfter() (time.Duration, bool) {
	if e.Retry == nil {
		return 0, false
	}
	return e.Retry.GetRetryDelay().AsDuration(), true
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

// errorOf reads an RPC's status and its typed details.
func errorOf(err error, trailer metadata.MD) *Error {
	said := status.Convert(err)
	failure := fromStatus(said.Proto())
	if values := trailer.Get("grpc-retry-pushback-ms"); len(values) > 0 {
		if millis, bad := strconv.Atoi(values[0]); bad == nil {
			pushback := time.Duration(millis) * time.Millisecond
			failure.pushback = &pushback
		}
	}
	return failure
}

// fromStatus reads a status with details; the items of a batch carry theirs in the message.
func fromStatus(said *spb.Status) *Error {
	failure := &Error{Code: codes.Code(said.GetCode()), Message: said.GetMessage()}
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
		failure.Outcome = outcomeOf(failure.Code)
	}
	return failure
}

// outcomeOf is what a bare status leaves known: a request that was refused before it was read did not run.
func outcomeOf(code codes.Code) pb.Outcome {
	switch code {
	case codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.InvalidArgument:
		return pb.Outcome_OUTCOME_NOT_RUN
	}
	return pb.Outcome_OUTCOME_UNKNOWN
}

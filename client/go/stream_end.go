package lineside

import (
	"errors"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

const acceptedKey = "lineside-frames-accepted"

// streamEnd is how a stream ended. accepted: how many frames the service says it took; nil when it did not say.
type streamEnd struct {
	failure  *Error
	accepted *int
}

func endOf(err error, trailer map[string][]string) streamEnd {
	if errors.Is(err, io.EOF) { // ended OK with answers missing: something in between may do that
		return streamEnd{failure: &Error{Code: codes.Internal, Message: "the stream ended before every call was answered", Outcome: pb.Outcome_OUTCOME_UNKNOWN}}
	}
	end := streamEnd{failure: FromError(err, trailer)}
	if values := trailer[acceptedKey]; len(values) > 0 {
		if count, bad := strconv.Atoi(values[0]); bad == nil {
			end.accepted = &count
		}
	}
	return end
}

// took tells whether the service may have begun on a frame, counted from 1.
func (e streamEnd) took(frame int) bool {
	if e.accepted != nil {
		return frame <= *e.accepted
	}
	if isRefusedAtTheDoor(e.failure.Code) {
		return false
	}
	return e.failure.Outcome != pb.Outcome_OUTCOME_NOT_RUN
}

// mayResume tells whether another stream may do better: the service drained, or the connection broke.
func (e streamEnd) mayResume() bool {
	isUnavailable := e.failure.Kind == pb.ErrorKind_ERROR_KIND_UNAVAILABLE
	switch pushback := e.failure.pushback; {
	case e.accepted != nil && isUnavailable:
		return true
	case e.failure.IsLost():
		return pushback == nil || *pushback >= 0
	case isUnavailable:
		return pushback != nil && *pushback >= 0
	}
	// Reset by a proxy in between, or ended OK before every answer was there: nobody of the service said why.
	return e.failure.isDropped() || e.failure.Dispatch == nil && e.failure.Code == codes.Internal
}

// pause is how long to wait before another stream.
func (e streamEnd) pause(fruitless int) time.Duration {
	pause := pauseBefore(fruitless)
	if e.failure.pushback != nil {
		return max(pause, *e.failure.pushback)
	}
	return pause
}

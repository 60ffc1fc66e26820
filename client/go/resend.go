package lineside

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

const (
	minTimeLeft = 5 * time.Millisecond  // with less left the service would start no attempt
	replyMargin = 20 * time.Millisecond // a call ends this long, or a tenth, before its RPC: the typed error comes first
	lateReply   = time.Second           // a call's own time is the service's to keep; its answer may be so late
	firstPause  = 50 * time.Millisecond
	maxPause    = 2 * time.Second
)

// resendPause tells whether a keyed call may be sent again, and when: the connection was lost, the RPC was dropped, or
// the service said that it is unavailable and gave a pushback. For one that nobody on this side has cancelled.
func resendPause(failure *Error, resends int) (time.Duration, bool) {
	pause := pauseBefore(resends)
	switch {
	case (failure.IsLost() || failure.isDropped()) && failure.pushback == nil:
		return pause, true
	case failure.pushback == nil || *failure.pushback < 0:
		return 0, false
	case failure.IsLost() || failure.Kind == pb.ErrorKind_ERROR_KIND_UNAVAILABLE:
		if resends > 0 { // a service that says "at once" over and over would be asked in a tight loop
			return max(*failure.pushback, pause), true
		}
		return *failure.pushback, true
	}
	return 0, false
}

// pauseBefore is the pause before the next sending: doubled each time up to 2 s, times 0.5 to 1.
func pauseBefore(resends int) time.Duration {
	pause := min(maxPause, firstPause<<min(resends, 16))
	return time.Duration(float64(pause) * (0.5 + rand.Float64()/2))
}

// setTimeout says the call's time exactly: the service sees the RPC's own only as gRPC rounds it. What the caller said
// and is not the least stays as it is: zero, say, which is for the service to refuse.
func setTimeout(ctx context.Context, call *pb.ToolCall, until time.Time) {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	left = min(left-min(replyMargin, left/10), time.Until(until))
	if asked := call.GetCallTimeout(); asked == nil || left < asked.AsDuration() {
		call.CallTimeout = durationpb.New(max(left, time.Millisecond))
	}
}

// wait sleeps, unless there would be no time for another attempt then, or the context ends.
func wait(ctx context.Context, pause time.Duration, until time.Time) bool {
	if !until.IsZero() && time.Until(until) < pause+minTimeLeft {
		return false
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

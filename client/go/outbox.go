package lineside

import (
	"context"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

const (
	window        = 256            // calls taken from the caller and not yet answered; the service takes as many
	maxFrameCalls = 256            // in one frame
	maxFrameBytes = 4<<20 - 64<<10 // the service takes 4 MiB; the rest is room for lengths and tags
	callOverhead  = 24             // bytes of a call's tag and length in its frame, and of a call_timeout set later
)

type item struct {
	position int
	call     *pb.ToolCall // the caller's
	wire     *pb.ToolCall // as sent: with an id of ours
	size     int
	deadline time.Time // set at its first sending
	frame    int       // of the present stream, from 1
	isSent   bool      // that frame was handed to the transport
	isOpen   bool      // an earlier sending was lost and may have run
}

// outbox holds what a batch still has to send and to hear about. A call is queued, handed to the transport, or among
// the results.
type outbox struct {
	calls   <-chan *pb.ToolCall // nil once it was closed
	queue   []*item
	handed  map[string]*item
	results []BatchResult
	frames  int
	added   int
}

// source is where the next call comes from, nil while there is no room for one.
func (b *outbox) source() <-chan *pb.ToolCall {
	if len(b.queue)+len(b.handed)+len(b.results) >= window {
		return nil
	}
	return b.calls
}

func (b *outbox) isDone() bool { return b.calls == nil && len(b.queue) == 0 && len(b.handed) == 0 }

// take adds a call, and those that are ready behind it, so that they share a frame.
func (b *outbox) take(call *pb.ToolCall, more bool) {
	for {
		if !more {
			b.calls = nil
			return
		}
		b.add(call)
		select {
		case call, more = <-b.source():
		default:
			return
		}
	}
}

func (b *outbox) add(call *pb.ToolCall) {
	one := &item{position: b.added, call: call, wire: cloneOf(call)}
	b.added++
	one.wire.ItemId = strconv.Itoa(one.position)
	one.size = proto.Size(one.wire) + callOverhead
	if one.size > maxFrameBytes {
		b.end(one, BatchResult{Err: &Error{Code: codes.InvalidArgument, Kind: pb.ErrorKind_ERROR_KIND_SCHEMA, Outcome: pb.Outcome_OUTCOME_NOT_RUN,
			Message: "the call has " + strconv.Itoa(one.size) + " bytes; a frame takes " + strconv.Itoa(maxFrameBytes)}})
		return
	}
	b.queue = append(b.queue, one)
}

// nextFrame is what goes out next; it counts as handed from here on. Nil when nothing is queued.
func (b *outbox) nextFrame() *pb.DispatchBatchRequest {
	frame, size := &pb.DispatchBatchRequest{}, 0
	for len(b.queue) > 0 && len(frame.Calls) < maxFrameCalls && size+b.queue[0].size <= maxFrameBytes {
		one := b.queue[0]
		b.queue = b.queue[1:]
		if !b.hasTime(one) {
			continue
		}
		one.frame = b.frames + 1
		b.handed[one.wire.ItemId] = one
		frame.Calls = append(frame.Calls, one.wire)
		size += one.size
	}
	if len(frame.Calls) == 0 {
		return nil
	}
	b.frames++
	return frame
}

// hasTime: a call's time runs from its first sending, as the service counts it, or from the first try at it.
func (b *outbox) hasTime(one *item) bool {
	if one.deadline.IsZero() {
		timeout := DefaultTimeout
		if asked := one.call.GetCallTimeout(); asked != nil {
			timeout = asked.AsDuration()
		}
		one.deadline = time.Now().Add(timeout)
		return true
	}
	left := time.Until(one.deadline)
	if left < minTimeLeft {
		b.fail(one, &Error{Code: codes.DeadlineExceeded, Kind: pb.ErrorKind_ERROR_KIND_TIMEOUT, Outcome: pb.Outcome_OUTCOME_NOT_RUN,
			Message: "the call's time ran out while the connection was being made again"})
		return false
	}
	one.wire.CallTimeout = durationpb.New(left)
	return true
}

// expire ends what ran out of time while no stream could be had, and takes in what is there: the time of what was never
// sent runs from here. It gives the pause back, or less of it where the time of a call ends before.
func (b *outbox) expire(pause time.Duration) time.Duration {
	select {
	case call, more := <-b.source():
		b.take(call, more)
	default:
	}
	b.queue = slices.DeleteFunc(b.queue, func(one *item) bool { return !b.hasTime(one) })
	for _, one := range b.queue {
		pause = min(pause, time.Until(one.deadline))
	}
	return pause
}

func (b *outbox) hear(response *pb.DispatchBatchResponse) {
	for _, told := range response.GetItems() {
		one, known := b.handed[told.GetItemId()]
		if !known {
			continue // not one of ours, or answered before
		}
		delete(b.handed, told.GetItemId())
		if answer := told.GetAnswer(); answer != nil {
			b.end(one, BatchResult{Answer: answer})
		} else {
			b.fail(one, FromStatus(told.GetError()))
		}
	}
	if refused := response.GetFrameError(); refused != nil {
		for id, one := range b.handed {
			if int64(one.frame) == refused.GetFrame() {
				delete(b.handed, id)
				b.fail(one, FromStatus(refused.GetStatus()))
			}
		}
	}
}

// broke ends what must not be sent again, and queues the rest in its old order, first.
func (b *outbox) broke(end streamEnd) {
	var again []*item
	for id, one := range b.handed {
		delete(b.handed, id)
		taken := one.isSent && end.took(one.frame)
		if taken && one.wire.IdempotencyKey == nil {
			failure := *end.failure
			failure.Outcome = pb.Outcome_OUTCOME_UNKNOWN
			b.fail(one, &failure)
			continue
		}
		one.isOpen, one.isSent = one.isOpen || taken, false
		again = append(again, one)
	}
	slices.SortFunc(again, func(x, y *item) int { return x.position - y.position })
	b.queue = append(again, b.queue...)
}

// giveUp: no further stream. What was never taken did not run, and neither does what the caller still hands in; once
// ctx has ended that stays where it is.
func (b *outbox) giveUp(ctx context.Context, end streamEnd, yield func(BatchResult) bool) {
	failure := *end.failure
	failure.Outcome = pb.Outcome_OUTCOME_NOT_RUN
	for {
		for _, one := range b.queue {
			b.fail(one, &failure)
		}
		b.queue = nil
		if !b.flush(yield) || b.calls == nil || ctx.Err() != nil {
			return
		}
		select {
		case call, more := <-b.calls:
			b.take(call, more)
		case <-ctx.Done():
			return
		}
	}
}

// sent: the transport has the frame; whether the service takes it is open from here on.
func (b *outbox) sent(frame *pb.DispatchBatchRequest) {
	for _, call := range frame.GetCalls() {
		b.handed[call.GetItemId()].isSent = true
	}
}

func (b *outbox) fail(one *item, failure *Error) {
	if one.isOpen {
		failure = failure.sinceLost()
	}
	b.end(one, BatchResult{Err: failure})
}

func (b *outbox) end(one *item, result BatchResult) {
	result.Position, result.Call = one.position, one.call
	b.results = append(b.results, result)
}

// flush hands the results over; false when the caller has left.
func (b *outbox) flush(yield func(BatchResult) bool) bool {
	for len(b.results) > 0 {
		result := b.results[0]
		b.results = b.results[1:]
		if !yield(result) {
			return false
		}
	}
	return true
}

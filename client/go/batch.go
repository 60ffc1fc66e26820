package lineside

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
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
	maxReconnects = 12             // streams in a row without an answer: with the pauses about 12 to 20 s
	callOverhead  = 24             // bytes of a call's tag and length in its frame, and of a call_timeout set later
	acceptedKey   = "lineside-frames-accepted"
)

// BatchResult is how one call of a batch ended: with an answer or with an error.
type BatchResult struct {
	Position int // of the call in the batch, from 0
	Call     *pb.ToolCall
	Answer   *pb.ToolAnswer
	Err      *Error
}

// Batch runs calls over one stream and gives their results as they finish, each call's exactly once. It takes calls only
// while fewer than 256 are unanswered, and reads no answers while the caller does not ask for the next result. The batch
// ends once calls is closed and everything is answered, or when the loop over it is left.
//
// When the stream breaks it goes on over another one: calls in frames that the service did not take are sent again, and
// so are those with a key; a keyless call that the service may have begun ends with outcome UNKNOWN.
func (c *Client) Batch(ctx context.Context, calls <-chan *pb.ToolCall) iter.Seq[BatchResult] {
	return func(yield func(BatchResult) bool) {
		ctx, cancel := context.WithCancel(withTrace(ctx))
		defer cancel() // ends the stream and its goroutines, however the loop is left
		box := &outbox{calls: calls, handed: map[string]*item{}}
		for fruitless := 0; ; fruitless++ {
			end, answered, done := c.batchStream(ctx, box, yield)
			if done {
				return
			}
			if answered {
				fruitless = 0
			}
			box.broke(end)
			if !end.mayResume() || fruitless >= maxReconnects || !wait(ctx, end.pause(fruitless)) {
				box.giveUp(ctx, end, yield)
				return
			}
			if !box.flush(yield) {
				return
			}
		}
	}
}

// batchStream serves one stream. done: everything is answered, or the caller has left.
func (c *Client) batchStream(ctx context.Context, box *outbox, yield func(BatchResult) bool) (end streamEnd, answered, done bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.dispatch.DispatchBatch(ctx)
	if err != nil {
		return streamEnd{failure: errorOf(err, nil)}, false, false
	}
	frames, heard := make(chan *pb.DispatchBatchRequest), make(chan *pb.DispatchBatchResponse)
	ended := make(chan error, 1)
	go sendFrames(ctx, stream, frames)
	go receive(ctx, stream, heard, ended)
	box.frames = 0
	var frame *pb.DispatchBatchRequest
	var open = true // our half of the stream
	for {
		if frame == nil {
			frame = box.nextFrame()
		}
		if !box.flush(yield) {
			return end, answered, true
		}
		if open && frame == nil && box.calls == nil && len(box.queue) == 0 {
			close(frames) // half-close: the service answers what it has and ends the stream
			open = false
		}
		var out chan<- *pb.DispatchBatchRequest
		if frame != nil {
			out = frames
		}
		select {
		case call, more := <-box.source():
			box.take(call, more)
		case out <- frame:
			box.sent(frame)
			frame = nil
		case response := <-heard:
			answered = true
			box.hear(response)
		case err := <-ended:
			if errors.Is(err, io.EOF) && box.isDone() {
				return end, answered, true
			}
			return endOf(err, stream.Trailer()), answered, false
		}
	}
}

func sendFrames(ctx context.Context, stream pb.DispatchService_DispatchBatchClient, frames <-chan *pb.DispatchBatchRequest) {
	for {
		select {
		case frame, more := <-frames:
			if !more {
				_ = stream.CloseSend() // never fails; the stream's status comes from Recv
				return
			}
			if stream.Send(frame) != nil {
				return // Recv tells why
			}
		case <-ctx.Done():
			return
		}
	}
}

// receive passes on what the service writes, one after the other, and at last how the stream ended.
func receive(ctx context.Context, stream pb.DispatchService_DispatchBatchClient, heard chan<- *pb.DispatchBatchResponse, ended chan<- error) {
	for {
		response, err := stream.Recv()
		if err != nil {
			ended <- err
			return
		}
		select {
		case heard <- response:
		case <-ctx.Done():
			ended <- ctx.Err()
			return
		}
	}
}

// streamEnd is how a stream ended. accepted: how many frames the service says it took; nil when it did not say.
type streamEnd struct {
	failure  *Error
	accepted *int
}

func endOf(err error, trailer map[string][]string) streamEnd {
	if errors.Is(err, io.EOF) { // ended OK with answers missing: something in between may do that
		return streamEnd{failure: &Error{Code: codes.Internal, Message: "the stream ended before every call was answered", Outcome: pb.Outcome_OUTCOME_UNKNOWN}}
	}
	end := streamEnd{failure: errorOf(err, trailer)}
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
	return e.failure.Dispatch == nil && e.failure.Code == codes.Internal
}

func (e streamEnd) pause(fruitless int) time.Duration {
	pause := min(maxPause, firstPause<<min(fruitless, 16))
	pause = time.Duration(float64(pause) * (0.5 + rand.Float64()/2))
	if e.failure.pushback != nil {
		return max(pause, *e.failure.pushback)
	}
	return pause
}

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
	if len(b.queue)+len(b.handed) >= window {
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
	one := &item{position: b.added, call: call, wire: proto.CloneOf(call)}
	b.added++
	one.wire.ItemId = strconv.Itoa(one.position)
	one.size = proto.Size(one.wire) + callOverhead
	if one.size > maxFrameBytes {
		b.end(one, nil, &Error{Code: codes.InvalidArgument, Kind: pb.ErrorKind_ERROR_KIND_SCHEMA, Outcome: pb.Outcome_OUTCOME_NOT_RUN,
			Message: "the call has " + strconv.Itoa(one.size) + " bytes; a frame takes " + strconv.Itoa(maxFrameBytes)})
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

// hasTime: a call's time runs from its first sending, as the service counts it.
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

func (b *outbox) hear(response *pb.DispatchBatchResponse) {
	for _, told := range response.GetItems() {
		one, known := b.handed[told.GetItemId()]
		if !known {
			continue // not one of ours, or answered before
		}
		delete(b.handed, told.GetItemId())
		if answer := told.GetAnswer(); answer != nil {
			b.end(one, answer, nil)
		} else {
			b.fail(one, fromStatus(told.GetError()))
		}
	}
	if refused := response.GetFrameError(); refused != nil {
		for id, one := range b.handed {
			if int64(one.frame) == refused.GetFrame() {
				delete(b.handed, id)
				b.fail(one, fromStatus(refused.GetStatus()))
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

// giveUp: no further stream. What was never taken did not run, and neither does what the caller still hands in.
func (b *outbox) giveUp(ctx context.Context, end streamEnd, yield func(BatchResult) bool) {
	failure := *end.failure
	failure.Outcome = pb.Outcome_OUTCOME_NOT_RUN
	for {
		for _, one := range b.queue {
			b.fail(one, &failure)
		}
		b.queue = nil
		if !b.flush(yield) || b.calls == nil {
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
	b.end(one, nil, failure)
}

func (b *outbox) end(one *item, answer *pb.ToolAnswer, failure *Error) {
	b.results = append(b.results, BatchResult{Position: one.position, Call: one.call, Answer: answer, Err: failure})
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

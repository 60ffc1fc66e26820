package lineside

import (
	"context"
	"errors"
	"io"
	"iter"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

const maxReconnects = 12 // streams in a row without an answer: with the pauses about 12 to 20 s

// BatchResult is how one call of a batch ended: with an answer or with an error, which is an *Error (AsError finds it).
type BatchResult struct {
	Position int // of the call in the batch, from 0
	Call     *pb.ToolCall
	Answer   *pb.ToolAnswer
	Err      error
}

// Batch runs calls over one stream and gives their results as they finish, each call's exactly once. It takes calls only
// while fewer than 256 are unanswered, and reads no answers while the caller does not ask for the next result. The batch
// ends once calls is closed and everything is answered, or when the loop over it is left.
//
// When the stream breaks it goes on over another one: calls in frames that the service did not take are sent again, and
// so are those with a key; a keyless call that the service may have begun ends with outcome UNKNOWN. When no stream can
// be had any more (a wrong token, say), every call that comes out of the channel ends with that error and outcome
// NOT_RUN.
//
// When ctx ends, every call that was taken ends with an error: UNKNOWN if it was sent, else NOT_RUN. Calls still in the
// channel are left there. They get no result and do not run; whoever sends into it must watch ctx, too.
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
			pause := box.expire(end.pause(fruitless))
			if !box.flush(yield) || box.isDone() {
				return
			}
			until, _ := ctx.Deadline() // zero without one
			if c.isClosed() || !end.mayResume() || fruitless >= maxReconnects || !wait(ctx, pause, until) {
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
		return streamEnd{failure: FromError(err, nil)}, false, false
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

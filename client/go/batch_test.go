package lineside

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

func TestABatchAnswersEachCallOnce(t *testing.T) {
	calls := make(chan *pb.ToolCall)
	go func() {
		defer close(calls)
		for number := range 1000 {
			value := any(number)
			tool := "echo"
			if number%100 == 7 {
				tool = "no_such_tool"
			}
			calls <- mustCall(t, tool, args{"value": value})
		}
	}()
	seen := map[int]bool{}
	for result := range client(t, address).Batch(within(t, 60*time.Second), calls) {
		if seen[result.Position] {
			t.Fatalf("call %d ended twice", result.Position)
		}
		seen[result.Position] = true
		if result.Position%100 == 7 {
			if failureOf(result) == nil || failureOf(result).Kind != pb.ErrorKind_ERROR_KIND_NOT_FOUND {
				t.Errorf("call %d: %v", result.Position, failureOf(result))
			}
		} else if got := string(result.Answer.GetResultJson()); got != fmt.Sprint(result.Position) {
			t.Errorf("call %d: %s, %v", result.Position, got, failureOf(result))
		}
	}
	if len(seen) != 1000 {
		t.Errorf("%d of 1000", len(seen))
	}
}

func TestABatchTakesCallsOnlyAsItIsRead(t *testing.T) {
	calls := make(chan *pb.ToolCall)
	taken := 0
	ctx, cancel := context.WithCancel(within(t, 60*time.Second))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case calls <- mustCall(t, "echo", args{"value": strings.Repeat("x", 1000)}):
				taken++
			case <-ctx.Done():
				return
			}
		}
	}()
	read := 0
	for range client(t, address).Batch(ctx, calls) {
		if read++; read == 10 {
			break // leaving the loop ends the stream
		}
	}
	cancel()
	<-done
	if taken > 2*window+read {
		t.Errorf("%d calls were taken for %d results", taken, read)
	}
}

func TestABatchGoesOnAfterALostConnection(t *testing.T) {
	relay := newRelay(t, 2)
	calls := make(chan *pb.ToolCall, 40)
	for number := range 40 {
		call := mustCall(t, "book", args{"seat": fmt.Sprintf("batch-%d", number)}, WithKey(fmt.Sprintf("batch-%d", number)))
		call.CallTimeout = durationpb.New(30 * time.Second)
		calls <- call
	}
	close(calls)
	ended := 0
	for result := range client(t, relay.address).Batch(within(t, 60*time.Second), calls) {
		ended++
		if booked, err := Result[map[string]int](result.Answer); err != nil || booked["effects"] != 1 {
			t.Errorf("call %d: %v, %v, %v", result.Position, booked, err, failureOf(result))
		}
	}
	if ended != 40 || relay.cuts() != 2 {
		t.Errorf("%d of 40, %d cuts", ended, relay.cuts())
	}
}

func TestKeylessItemsOfALostConnectionAreUnknown(t *testing.T) {
	relay := newRelay(t, 1)
	row := rand.Text() // nobody's yet
	calls := make(chan *pb.ToolCall, 20)
	for number := range cap(calls) {
		calls <- mustCall(t, "book", args{"seat": fmt.Sprint(row, number)})
	}
	close(calls)
	ended := 0
	for result := range client(t, relay.address).Batch(within(t, 30*time.Second), calls) {
		ended++
		if failureOf(result) == nil || !failureOf(result).IsLost() || failureOf(result).Outcome != pb.Outcome_OUTCOME_UNKNOWN {
			t.Errorf("call %d: %v, %v", result.Position, result.Answer, failureOf(result))
		}
	}
	if ended != cap(calls) || relay.cuts() != 1 {
		t.Fatalf("%d of %d, %d cuts", ended, cap(calls), relay.cuts())
	}
	c := client(t, address)
	for number := range ended { // booked again: by now at most twice
		answer, err := c.Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{"seat": fmt.Sprint(row, number)}))
		if err != nil {
			t.Fatal(err)
		}
		if booked, _ := Result[map[string]int](answer); booked["effects"] > 2 {
			t.Errorf("call %d was sent again", number)
		}
	}
}

func TestOnlyKeyedCallsAreSentOverAnotherStream(t *testing.T) {
	var again []string
	service := &scripted{onBatch: func(number int, stream pb.DispatchService_DispatchBatchServer) error {
		if number == 1 {
			if _, err := stream.Recv(); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "the connection broke")
		}
		return answerAll(stream, func(call *pb.ToolCall) { again = append(again, call.GetIdempotencyKey()) })
	}}
	calls := make(chan *pb.ToolCall, 4)
	for number := range cap(calls) {
		call := mustCall(t, "book", args{"seat": fmt.Sprint(number)})
		if number%2 == 1 {
			WithKey(fmt.Sprintf("k%d", number))(call)
		}
		calls <- call
	}
	close(calls)
	results := collect(t, client(t, service.serve(t)).Batch(within(t, 30*time.Second), calls), cap(calls))
	for position, result := range results {
		if isKeyed := position%2 == 1; isKeyed != (failureOf(result) == nil) {
			t.Errorf("call %d: %v", position, failureOf(result))
		} else if !isKeyed && failureOf(result).Outcome != pb.Outcome_OUTCOME_UNKNOWN {
			t.Errorf("call %d: %v", position, failureOf(result))
		}
	}
	if !slices.Equal(again, []string{"k1", "k3"}) {
		t.Errorf("sent again: %q", again)
	}
}

// TestADrainedStreamGoesOnWhereTheServiceStopped: what it did not take is sent again, key or no key; what it took is not.
func TestADrainedStreamGoesOnWhereTheServiceStopped(t *testing.T) {
	var again []string
	hasFirst := make(chan struct{})
	service := &scripted{onBatch: func(number int, stream pb.DispatchService_DispatchBatchServer) error {
		if number > 1 {
			return answerAll(stream, func(call *pb.ToolCall) { again = append(again, call.GetItemId()) })
		}
		taken, err := stream.Recv()
		if err != nil {
			return err
		}
		close(hasFirst)
		if err := answer(stream, taken.GetCalls()[0]); err != nil { // the other one's answer is lost
			return err
		}
		if _, err := stream.Recv(); err != nil { // arrived, and not taken
			return err
		}
		stream.SetTrailer(metadata.Pairs("lineside-frames-accepted", "1", "grpc-retry-pushback-ms", "-1"))
		return draining()
	}}
	calls := make(chan *pb.ToolCall, 2)
	calls <- mustCall(t, "book", args{"seat": "answered"})
	calls <- mustCall(t, "book", args{"seat": "taken"})
	go func() {
		<-hasFirst
		calls <- mustCall(t, "book", args{"seat": "not taken"})
		close(calls)
	}()
	results := collect(t, client(t, service.serve(t)).Batch(within(t, 30*time.Second), calls), 3)
	if failureOf(results[0]) != nil || failureOf(results[2]) != nil {
		t.Errorf("answered: %v, not taken: %v", failureOf(results[0]), failureOf(results[2]))
	}
	if lost := failureOf(results[1]); lost == nil || lost.Outcome != pb.Outcome_OUTCOME_UNKNOWN || lost.Kind != pb.ErrorKind_ERROR_KIND_UNAVAILABLE {
		t.Errorf("taken: %v", lost)
	}
	if !slices.Equal(again, []string{"2"}) {
		t.Errorf("sent again: %q", again)
	}
}

func TestACancelledBatchLeavesWhatItDidNotTake(t *testing.T) {
	hasFirst := make(chan struct{})
	service := &scripted{onBatch: func(_ int, stream pb.DispatchService_DispatchBatchServer) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		close(hasFirst)
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	const all = window + 344
	calls := make(chan *pb.ToolCall, all)
	for range all {
		calls <- mustCall(t, "book", args{"seat": "any"}, WithKey("k"))
	}
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	go func() {
		<-hasFirst
		cancel()
	}()
	results := collect(t, client(t, service.serve(t)).Batch(ctx, calls), window)
	for position, result := range results {
		if failureOf(result) == nil || failureOf(result).Code != codes.Canceled || failureOf(result).Outcome != pb.Outcome_OUTCOME_UNKNOWN {
			t.Errorf("call %d: %v", position, failureOf(result))
		}
	}
	if len(calls) != all-window {
		t.Errorf("%d calls are left", len(calls))
	}
}

func TestClosingTheClientEndsItsBatches(t *testing.T) {
	hasFirst := make(chan struct{})
	service := &scripted{onBatch: func(_ int, stream pb.DispatchService_DispatchBatchServer) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		close(hasFirst)
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
	c := client(t, service.serve(t))
	calls := make(chan *pb.ToolCall, 1)
	calls <- mustCall(t, "book", args{"seat": "sent"}, WithKey("k"))
	go func() {
		<-hasFirst
		c.Close()
		calls <- mustCall(t, "book", args{"seat": "too late"})
		close(calls)
	}()
	began := time.Now()
	results := collect(t, c.Batch(within(t, 30*time.Second), calls), 2)
	if sent := failureOf(results[0]); sent == nil || sent.Outcome != pb.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("sent: %v", sent)
	}
	if failureOf(results[1]) == nil {
		t.Error("answered after Close")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestLeavingTheLoopEndsTheStream(t *testing.T) {
	ended := make(chan struct{})
	service := &scripted{onBatch: func(_ int, stream pb.DispatchService_DispatchBatchServer) error {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := answer(stream, frame.GetCalls()...); err != nil {
			return err
		}
		<-stream.Context().Done()
		close(ended)
		return nil
	}}
	calls := make(chan *pb.ToolCall, 1)
	calls <- mustCall(t, "echo", args{"value": 1})
	ctx := within(t, 30*time.Second)
	for range client(t, service.serve(t)).Batch(ctx, calls) {
		break
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the stream goes on")
	}
}

func TestARefusedStreamEndsEveryCallUnrun(t *testing.T) {
	service := &scripted{onBatch: func(int, pb.DispatchService_DispatchBatchServer) error {
		return status.Error(codes.Unauthenticated, "who are you?")
	}}
	calls := make(chan *pb.ToolCall)
	go func() {
		defer close(calls)
		for range 2*window + 1 { // more than are taken at once
			calls <- mustCall(t, "book", args{"seat": "any"})
		}
	}()
	results := collect(t, client(t, service.serve(t)).Batch(within(t, 30*time.Second), calls), 2*window+1)
	for position, result := range results {
		if failureOf(result) == nil || failureOf(result).Code != codes.Unauthenticated || failureOf(result).Outcome != pb.Outcome_OUTCOME_NOT_RUN {
			t.Errorf("call %d: %v", position, failureOf(result))
		}
	}
}

func TestACallTooLargeForAFrameEndsAlone(t *testing.T) {
	calls := make(chan *pb.ToolCall, 2)
	calls <- mustCall(t, "echo", args{"value": strings.Repeat("x", maxFrameBytes)})
	calls <- mustCall(t, "echo", args{"value": 1})
	close(calls)
	results := collect(t, client(t, address).Batch(within(t, 30*time.Second), calls), 2)
	if refused := failureOf(results[0]); refused == nil || refused.Kind != pb.ErrorKind_ERROR_KIND_SCHEMA || refused.Outcome != pb.Outcome_OUTCOME_NOT_RUN {
		t.Errorf("%v", refused)
	}
	if failureOf(results[1]) != nil {
		t.Error(failureOf(results[1]))
	}
}

// collect has the results by position; each call has exactly one.
// failureOf is how a call of a batch failed; nil where it has an answer.
func failureOf(result BatchResult) *Error {
	failure, _ := AsError(result.Err)
	return failure
}

func collect(t *testing.T, results iter.Seq[BatchResult], count int) map[int]BatchResult {
	t.Helper()
	found := map[int]BatchResult{}
	for result := range results {
		if _, twice := found[result.Position]; twice {
			t.Fatalf("call %d ended twice", result.Position)
		}
		found[result.Position] = result
	}
	if len(found) != count {
		t.Fatalf("%d results, not %d", len(found), count)
	}
	return found
}

package lineside

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

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
			if result.Err == nil || result.Err.Kind != pb.ErrorKind_ERROR_KIND_NOT_FOUND {
				t.Errorf("call %d: %v", result.Position, result.Err)
			}
		} else if got := string(result.Answer.GetResultJson()); got != fmt.Sprint(result.Position) {
			t.Errorf("call %d: %s, %v", result.Position, got, result.Err)
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
			t.Errorf("call %d: %v, %v, %v", result.Position, booked, err, result.Err)
		}
	}
	if ended != 40 || relay.cuts() != 2 {
		t.Errorf("%d of 40, %d cuts", ended, relay.cuts())
	}
}

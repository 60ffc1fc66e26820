package lineside

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

var address string // of the real service that all tests call

func TestMain(m *testing.M) {
	stop, err := serve()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	stop()
	os.Exit(code)
}

// serve starts the service of this checkout; LINESIDE_SERVICE names another executable.
func serve() (stop func(), err error) {
	command := os.Getenv("LINESIDE_SERVICE")
	if command == "" {
		command = filepath.Join("..", "..", ".venv", "bin", "lineside-service")
	}
	process := exec.Command(command, "serve", "--config", filepath.Join("testdata", "lineside.toml"))
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("%w; `make setup` in the root of the project installs it", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	found := regexp.MustCompile(`SERVING on (\S+?):? `).FindStringSubmatch(line)
	if err != nil || found == nil {
		return nil, fmt.Errorf("the service did not start: %q", line)
	}
	go io.Copy(io.Discard, out)
	address = found[1]
	return func() { process.Process.Signal(syscall.SIGTERM); process.Wait() }, nil
}

func client(t *testing.T, target string) *Client {
	t.Helper()
	c, err := New(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t *testing.T, timeout time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}

func mustCall(t *testing.T, tool string, arguments any, options ...CallOption) *pb.ToolCall {
	t.Helper()
	call, err := Call(tool, arguments, options...)
	if err != nil {
		t.Fatal(err)
	}
	return call
}

type args = map[string]any

func TestAnAnswerKeepsBigNumbersExact(t *testing.T) {
	c := client(t, address)
	call := mustCall(t, "echo", args{"value": json.RawMessage("[9007199254740993, 1e2, null, \"\u00e9\"]")})
	answer, err := c.Dispatch(within(t, 10*time.Second), call)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(answer.GetResultJson()); got != "[9007199254740993,100.0,null,\"\u00e9\"]" {
		t.Errorf("result %s", got)
	}
	if answer.GetSource() != pb.Source_SOURCE_EXECUTED || answer.GetAttempts() != 1 {
		t.Errorf("%v after %d attempts", answer.GetSource(), answer.GetAttempts())
	}
}

func TestAKeyIsRunOnce(t *testing.T) {
	c := client(t, address)
	call := mustCall(t, "book", args{"seat": "1A"}, WithKey("trip-1"))
	first, err := c.Dispatch(within(t, 10*time.Second), call)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Dispatch(within(t, 10*time.Second), call)
	if err != nil {
		t.Fatal(err)
	}
	result, err := Result[map[string]int](again)
	if err != nil || result["effects"] != 1 || again.GetCallId() != first.GetCallId() {
		t.Errorf("%v, %v, call ids %s and %s", result, err, first.GetCallId(), again.GetCallId())
	}
	if again.GetSource() != pb.Source_SOURCE_REPLAYED {
		t.Errorf("source %v", again.GetSource())
	}
}

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

func TestAToolThatSaysNoIsAnAnswer(t *testing.T) {
	answer, err := client(t, address).Dispatch(within(t, 10*time.Second), mustCall(t, "refuse", args{"why": "sold out"}))
	if err != nil || !answer.GetToolError() || !strings.Contains(string(answer.GetResultJson()), "sold out") {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestCancellingGivesTheCallUp(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	_, err := client(t, address).Dispatch(ctx, mustCall(t, "hang", args{}))
	if failure, ok := AsError(err); !ok || failure.Code != codes.Canceled {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestTheTraceGoesAlong(t *testing.T) {
	id := trace.TraceID{1, 2, 3}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(within(t, 10*time.Second), span)
	answer, err := client(t, address).Dispatch(ctx, mustCall(t, "echo", args{"value": 1}))
	if err != nil || answer.GetTraceId() != id.String() {
		t.Errorf("trace %s, %v", answer.GetTraceId(), err)
	}
}

func TestALostAnswerIsAskedForAgainUnderItsKey(t *testing.T) {
	relay := newRelay(t, 1)
	answer, err := client(t, relay.address).Dispatch(within(t, 20*time.Second), mustCall(t, "book", args{"seat": "3C"}, WithKey("trip-3")))
	if err != nil {
		t.Fatal(err)
	}
	result, err := Result[map[string]int](answer)
	if err != nil || result["effects"] != 1 || relay.cuts() != 1 {
		t.Errorf("%v, %v, %d cuts", result, err, relay.cuts())
	}
}

func TestALostAnswerWithoutAKeyIsUnknown(t *testing.T) {
	relay := newRelay(t, 1)
	_, err := client(t, relay.address).Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{"seat": "4D"}))
	if failure, ok := AsError(err); !ok || !failure.IsLost() || failure.Outcome != pb.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("%v", err)
	}
}

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

// relay stands between client and service and cuts its first connections when the service begins to answer.
type relay struct {
	address string
	mu      sync.Mutex
	left    int
	done    int
}

func newRelay(t *testing.T, cuts int) *relay {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	r := &relay{address: listener.Addr().String(), left: cuts}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go r.pass(near)
		}
	}()
	return r
}

func (r *relay) cuts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

func (r *relay) pass(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer far.Close()
	go io.Copy(far, near)
	buffer := make([]byte, 64<<10)
	for {
		count, err := far.Read(buffer)
		if err != nil {
			return
		}
		if hasHeaders(buffer[:count]) && r.cut() {
			return
		}
		if _, err := near.Write(buffer[:count]); err != nil {
			return
		}
	}
}

func (r *relay) cut() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left == 0 {
		return false
	}
	r.left--
	r.done++
	return true
}

// hasHeaders tells whether HTTP/2 frames with an answer's headers begin in what was read: the call has run by then.
func hasHeaders(read []byte) bool {
	for len(read) >= 9 {
		length := int(read[0])<<16 | int(read[1])<<8 | int(read[2])
		if read[3] == 1 {
			return true
		}
		read = read[min(len(read), 9+length):]
	}
	return false
}

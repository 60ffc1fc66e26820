package lineside

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

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

func TestAKeyedCallIsSentAgainWhenTheServiceSaysSo(t *testing.T) {
	service := &scripted{onDispatch: func(ctx context.Context, sending int) error {
		if sending > 1 {
			return nil
		}
		return withPushback(ctx, "120", draining())
	}}
	c := client(t, service.serve(t))
	if _, err := c.Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{"seat": "1"}, WithKey("k"))); err != nil {
		t.Fatal(err)
	}
	sent := service.sendings()
	if len(sent) != 2 || sent[0].GetIdempotencyKey() != "k" || sent[1].GetIdempotencyKey() != "k" {
		t.Fatalf("sent %v", sent)
	}
	if waited := service.at[1].Sub(service.at[0]); waited < 120*time.Millisecond {
		t.Errorf("sent again after %v, not after the pushback", waited)
	}
	if first, second := sent[0].GetCallTimeout().AsDuration(), sent[1].GetCallTimeout().AsDuration(); second >= first {
		t.Errorf("the second sending has %v of the first one's %v", second, first)
	}
}

func TestAKeyedCallThatWasDroppedIsSentAgain(t *testing.T) {
	service := &scripted{onDispatch: func(_ context.Context, sending int) error {
		if sending > 1 {
			return nil
		}
		return status.Error(codes.Canceled, "turned away unseen")
	}}
	c := client(t, service.serve(t))
	if _, err := c.Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{}, WithKey("k"))); err != nil {
		t.Error(err)
	}
	if sent := len(service.sendings()); sent != 2 {
		t.Errorf("sent %d times", sent)
	}
}

func TestWhatIsNeverSentAgain(t *testing.T) {
	lost := status.Error(codes.Unavailable, "the connection broke")
	transient := refusal(codes.Unavailable, pb.ErrorKind_ERROR_KIND_TRANSIENT)
	for name, test := range map[string]struct {
		err      error
		pushback string
		options  []CallOption
	}{
		"no key, lost":                       {lost, "", nil},
		"no key, dropped":                    {status.Error(codes.Canceled, "turned away"), "", nil},
		"no key, lost, with a pushback":      {lost, "0", nil},
		"no key, draining, with a pushback":  {draining(), "0", nil},
		"a key, draining, told not to":       {draining(), "-1", []CallOption{WithKey("k")}},
		"a key, draining, no pushback":       {draining(), "", []CallOption{WithKey("k")}},
		"a key, draining, pushback garbled":  {draining(), "soon", []CallOption{WithKey("k")}},
		"a key, lost, told not to":           {lost, "-1", []CallOption{WithKey("k")}},
		"a key, transient, with a pushback":  {transient, "0", []CallOption{WithKey("k")}},
		"a key, not found, with a pushback":  {refusal(codes.NotFound, pb.ErrorKind_ERROR_KIND_NOT_FOUND), "0", []CallOption{WithKey("k")}},
		"a key, a bare code that is not 14":  {status.Error(codes.Internal, "reset"), "", []CallOption{WithKey("k")}},
		"a key, overloaded, with a pushback": {refusal(codes.ResourceExhausted, pb.ErrorKind_ERROR_KIND_OVERLOADED), "0", []CallOption{WithKey("k")}},
	} {
		t.Run(name, func(t *testing.T) {
			service := &scripted{onDispatch: func(ctx context.Context, _ int) error {
				if test.pushback == "" {
					return test.err
				}
				return withPushback(ctx, test.pushback, test.err)
			}}
			_, err := client(t, service.serve(t)).Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{"seat": "1"}, test.options...))
			if failure, ok := AsError(err); !ok || failure.Code != status.Code(test.err) {
				t.Errorf("%v", err)
			}
			if sent := service.sendings(); len(sent) != 1 {
				t.Errorf("sent %d times", len(sent))
			}
		})
	}
}

func TestSendingAgainEndsWithTheDeadline(t *testing.T) {
	service := &scripted{onDispatch: func(context.Context, int) error { return status.Error(codes.Unavailable, "lost") }}
	began := time.Now()
	_, err := client(t, service.serve(t)).Dispatch(within(t, 400*time.Millisecond), mustCall(t, "book", args{}, WithKey("k")))
	if failure, ok := AsError(err); !ok || failure.Outcome != pb.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("%v", err)
	}
	if sent := len(service.sendings()); sent < 2 || time.Since(began) > 5*time.Second {
		t.Errorf("sent %d times in %v", sent, time.Since(began))
	}
}

func TestSendingAgainEndsWithTheCallsOwnTime(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close() // nobody listens there now
	c := client(t, listener.Addr().String())
	call := mustCall(t, "book", args{}, WithKey("k"), WithTimeout(400*time.Millisecond))
	began := time.Now()
	if _, err := c.Dispatch(context.Background(), call); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	calls := make(chan *pb.ToolCall, 1)
	calls <- call
	close(calls)
	began = time.Now()
	ended := failureOf(collect(t, c.Batch(context.Background(), calls), 1)[0])
	if ended == nil || ended.Outcome != pb.Outcome_OUTCOME_NOT_RUN || time.Since(began) > 5*time.Second {
		t.Errorf("in a batch: %v after %v", ended, time.Since(began))
	}
}

func TestNoCallIsForTheServiceToRefuse(t *testing.T) {
	_, err := client(t, address).Dispatch(within(t, 10*time.Second), nil)
	if failure, ok := AsError(err); !ok || failure.Kind != pb.ErrorKind_ERROR_KIND_SCHEMA {
		t.Errorf("%v", err)
	}
}

func TestWhatALostSendingLeftOpenStaysOpen(t *testing.T) {
	service := &scripted{onDispatch: func(_ context.Context, sending int) error {
		if sending == 1 {
			return status.Error(codes.Unavailable, "lost")
		}
		return refusal(codes.ResourceExhausted, pb.ErrorKind_ERROR_KIND_OVERLOADED) // did not run, says this sending
	}}
	_, err := client(t, service.serve(t)).Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{}, WithKey("k")))
	failure, ok := AsError(err)
	if !ok || failure.Kind != pb.ErrorKind_ERROR_KIND_OVERLOADED || failure.Outcome != pb.Outcome_OUTCOME_UNKNOWN {
		t.Errorf("%v", err)
	}
}

func TestWhatWasNeverSentDidNotRun(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close() // nobody listens there now
	_, err = client(t, listener.Addr().String()).Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{}))
	if failure, ok := AsError(err); !ok || !failure.IsLost() || failure.Outcome != pb.Outcome_OUTCOME_NOT_RUN {
		t.Errorf("%v", err)
	}
}

// TestAServiceConfigFromDNSChangesNothing: a published retryPolicy for every method would repeat effects.
func TestAServiceConfigFromDNSChangesNothing(t *testing.T) {
	service := &scripted{onDispatch: func(context.Context, int) error { return status.Error(codes.Unavailable, "lost") }}
	published := `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.01s",
		"maxBackoff": "0.01s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	resolved := &publishing{address: service.serve(t), config: published}
	c := client(t, "published:///service", WithDialOptions(grpc.WithResolvers(resolved)))
	if _, err := c.Dispatch(within(t, 10*time.Second), mustCall(t, "book", args{})); err == nil {
		t.Error("answered")
	}
	if sent := len(service.sendings()); sent != 1 {
		t.Errorf("sent %d times", sent)
	}
	if _, err := pb.NewToolServiceClient(c.Conn()).ListTools(within(t, 10*time.Second), &pb.ListToolsRequest{}); err == nil {
		t.Error("answered")
	}
	if service.reads != 4 {
		t.Errorf("a read was tried %d times, not 4 as the embedded config says", service.reads)
	}
	if !resolved.isParsed {
		t.Error("the published config was not even one")
	}
}

// publishing resolves as DNS does for a service that has published a config.
type publishing struct {
	address, config string
	isParsed        bool
}

func (p *publishing) Scheme() string { return "published" }

func (p *publishing) Build(_ resolver.Target, conn resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	config := conn.ParseServiceConfig(p.config)
	p.isParsed = config.Err == nil
	return p, conn.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: p.address}}, ServiceConfig: config})
}

func (p *publishing) ResolveNow(resolver.ResolveNowOptions) {}

func (p *publishing) Close() {}

// Package lineside calls tools through a Lineside service.
//
// It is meant to be read and copied: one connection, one call, one error type. Retrying is the service's work; this
// client repeats only what the wire lost, and only under an idempotency key.
package lineside

import (
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// serviceConfig is the one that Lineside publishes: gRPC's own retries for reads, none for Dispatch, where a repeated
// request could repeat an effect. A test keeps it equal to the Python client's.
//
//go:embed service_config.json
var serviceConfig string

// DefaultTimeout is the time of a call whose context has no deadline; the service's own default too.
const DefaultTimeout = 60 * time.Second

const (
	maxMessage  = 16 << 20              // what the service takes in one message, bytes
	minTimeLeft = 5 * time.Millisecond  // with less left the service would start no attempt
	replyMargin = 20 * time.Millisecond // a call ends this long, or a tenth, before its RPC: the typed error comes first
	firstPause  = 50 * time.Millisecond
	maxPause    = 2 * time.Second
)

// Client is one connection to a service. It serves any number of goroutines and connects at its first call.
type Client struct {
	conn     *grpc.ClientConn
	dispatch pb.DispatchServiceClient
}

// Option changes how New connects.
type Option func(*settings)

type settings struct {
	transport credentials.TransportCredentials
	token     string
	dial      []grpc.DialOption
}

// WithTLS encrypts the connection; nil takes the system's roots. For mTLS put the certificate into the config.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) { s.transport = credentials.NewTLS(config) }
}

// WithToken sends a bearer token with every call. Without WithTLS it travels in the clear.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

// WithDialOptions adds gRPC's own options.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// New makes a client of the service at target, "host:port".
func New(target string, options ...Option) (*Client, error) {
	s := settings{transport: insecure.NewCredentials()}
	for _, option := range options {
		option(&s)
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(s.transport),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
	if s.token != "" {
		dial = append(dial, grpc.WithPerRPCCredentials(bearer(s.token)))
	}
	conn, err := grpc.NewClient(target, append(dial, s.dial...)...)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, dispatch: pb.NewDispatchServiceClient(conn)}, nil
}

// Close ends the connection; calls under way end as lost.
func (c *Client) Close() error { return c.conn.Close() }

// Conn is the connection, for the stubs of the other services.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Dispatch runs one tool call and waits for its answer. The context's deadline bounds waiting, attempts and back-off
// together; cancelling it gives the call up. A tool that ran and said no is an answer with ToolError set. Every failure
// is an *Error.
//
// With an idempotency key a call whose connection was lost is sent again within its deadline: the service runs it once.
func (c *Client) Dispatch(ctx context.Context, call *pb.ToolCall) (*pb.ToolAnswer, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	ctx = withTrace(ctx)
	call = proto.CloneOf(call)
	isOpen := false // an earlier sending was lost and may have run
	for resends := 0; ; resends++ {
		setTimeout(ctx, call)
		var trailer metadata.MD
		response, err := c.dispatch.Dispatch(ctx, &pb.DispatchRequest{Call: call}, grpc.Trailer(&trailer))
		if err == nil {
			return response.GetAnswer(), nil
		}
		failure := errorOf(err, trailer)
		if isOpen {
			failure = failure.sinceLost()
		}
		pause, again := resendPause(failure, resends)
		if !again || call.IdempotencyKey == nil || !wait(ctx, pause) {
			return nil, failure
		}
		isOpen = isOpen || failure.Outcome == pb.Outcome_OUTCOME_UNKNOWN
	}
}

// resendPause tells whether a keyed call may be sent again, and when: the connection was lost, or the service said
// that it is unavailable and gave a pushback.
func resendPause(failure *Error, resends int) (time.Duration, bool) {
	pause := min(maxPause, firstPause<<min(resends, 16))
	pause = time.Duration(float64(pause) * (0.5 + rand.Float64()/2))
	switch {
	case failure.IsLost() && failure.pushback == nil:
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

func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, DefaultTimeout)
}

// setTimeout says the call's time exactly: the service sees the RPC's own only as gRPC rounds it.
func setTimeout(ctx context.Context, call *pb.ToolCall) {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	left -= min(replyMargin, left/10)
	if asked := call.GetCallTimeout(); asked == nil || left < asked.AsDuration() {
		call.CallTimeout = durationpb.New(max(left, time.Millisecond))
	}
}

// withTrace sends the caller's trace along as W3C headers.
func withTrace(ctx context.Context) context.Context {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for name, value := range carrier {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	return ctx
}

// wait sleeps, unless the context ends before there would be time for another attempt.
func wait(ctx context.Context, pause time.Duration) bool {
	if deadline, has := ctx.Deadline(); has && time.Until(deadline) < pause+minTimeLeft {
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

type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (b bearer) RequireTransportSecurity() bool { return false }

// AsError finds the *Error in err.
func AsError(err error) (*Error, bool) {
	var failure *Error
	return failure, errors.As(err, &failure)
}

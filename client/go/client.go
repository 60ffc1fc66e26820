// Package lineside calls tools through a Lineside service.
//
// It is meant to be read and copied: one connection, one call, one error type. Retrying is the service's work; this
// client repeats only what the wire lost, and only under an idempotency key.
package lineside

import (
	"context"
	"crypto/tls"
	_ "embed"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// serviceConfig is the one that Lineside publishes: gRPC's own retries for reads, none for Dispatch, where a repeated
// request could repeat an effect. A test keeps it equal to the Python client's.
//
//go:embed service_config.json
var serviceConfig string

// DefaultTimeout is the time of a call whose context has no deadline; the service's own default too.
const DefaultTimeout = 60 * time.Second

// reconnecting is quicker than gRPC's own 1 s growing to 120 s, which is for crowds: a service that restarts is back
// within seconds.
var reconnecting = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 20 * time.Second,
}

const maxMessage = 16 << 20 // what the service takes in one message, bytes

// Client is one connection to a service. It serves any number of goroutines and connects at its first call.
type Client struct {
	conn     *grpc.ClientConn
	dispatch pb.DispatchServiceClient
}

// Option changes how New connects.
type Option func(*settings)

type settings struct {
	tls             *tls.Config // nil: plaintext
	token           *string
	isInsecureToken bool
	dial            []grpc.DialOption
}

// WithTLS encrypts the connection; nil trusts the system's authorities. For mTLS put the caller's certificate into the
// config.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) {
		if s.tls = config; config == nil {
			s.tls = &tls.Config{}
		}
	}
}

// WithToken sends a bearer token with every call: over TLS, or to this machine itself. To anywhere else New refuses it,
// unless WithInsecureToken is given.
func WithToken(token string) Option { return func(s *settings) { s.token = &token } }

// WithInsecureToken lets the token travel in plaintext, over a network that is trusted.
func WithInsecureToken() Option { return func(s *settings) { s.isInsecureToken = true } }

// WithDialOptions adds gRPC's own options; they win over the client's.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// New makes a client of the service at target, "host:port" or any gRPC target.
func New(target string, options ...Option) (*Client, error) {
	var s settings
	for _, option := range options {
		option(&s)
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(s.transport()),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // one that DNS publishes could bring retries of Dispatch
		grpc.WithConnectParams(reconnecting),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
	}
	if s.token != nil {
		if err := s.checkToken(target); err != nil {
			return nil, err
		}
		dial = append(dial, grpc.WithPerRPCCredentials(bearer{token: *s.token, needsTLS: s.tls != nil}))
	}
	conn, err := grpc.NewClient(target, append(dial, s.dial...)...)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, dispatch: pb.NewDispatchServiceClient(conn)}, nil
}

// Close ends the connection; calls under way end with an error, those that were sent with outcome UNKNOWN.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) isClosed() bool { return c.conn.GetState() == connectivity.Shutdown }

// Conn is the connection, for the stubs of the other services.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Dispatch runs one tool call and waits for its answer. The earlier of the context's deadline and the call's own time
// bounds waiting, attempts and back-off together; cancelling the context gives the call up. A tool that ran and said no is an answer with ToolError set. Every failure
// is an *Error.
//
// With an idempotency key a call that was lost on its way is sent again within its deadline: the service runs it once.
func (c *Client) Dispatch(ctx context.Context, call *pb.ToolCall) (*pb.ToolAnswer, error) {
	ctx, cancel, until := withDeadline(ctx, call)
	defer cancel()
	ctx = withTrace(ctx)
	call = cloneOf(call)
	isOpen := false // an earlier sending was lost and may have run
	for resends := 0; ; resends++ {
		setTimeout(ctx, call, until)
		var trailer metadata.MD
		response, err := c.dispatch.Dispatch(ctx, &pb.DispatchRequest{Call: call}, grpc.Trailer(&trailer))
		if err == nil {
			return response.GetAnswer(), nil
		}
		failure := FromError(err, trailer)
		if isOpen {
			failure = failure.sinceLost()
		}
		pause, again := resendPause(failure, resends)
		if !again || call.IdempotencyKey == nil || ctx.Err() != nil || c.isClosed() || !wait(ctx, pause, until) {
			return nil, failure
		}
		isOpen = isOpen || failure.Outcome == pb.Outcome_OUTCOME_UNKNOWN
	}
}

// cloneOf makes an empty call of none: the service says what it lacks.
func cloneOf(call *pb.ToolCall) *pb.ToolCall {
	if call == nil {
		return &pb.ToolCall{}
	}
	return proto.CloneOf(call)
}

// withDeadline also tells until when the call may run and be sent again. The RPC of a call that states its time, in a
// context that states none, ends later by what an answer in the last moment takes.
func withDeadline(ctx context.Context, call *pb.ToolCall) (context.Context, context.CancelFunc, time.Time) {
	now, own := time.Now(), call.GetCallTimeout().AsDuration()
	end, has := ctx.Deadline()
	if !has {
		end = now.Add(DefaultTimeout)
		if own > 0 {
			end = now.Add(own + lateReply)
		}
	}
	until := end
	if own > 0 && now.Add(own).Before(end) {
		until = now.Add(own)
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	return ctx, cancel, until
}

// withTrace sends the caller's trace along as W3C headers; the context's span stands before headers that are there.
func withTrace(ctx context.Context) context.Context {
	trace := traceOf(ctx)
	if len(trace) == 0 {
		return ctx
	}
	headers, has := metadata.FromOutgoingContext(ctx) // a copy
	if !has {
		headers = metadata.MD{}
	}
	for name, value := range trace {
		headers.Set(name, value)
	}
	return metadata.NewOutgoingContext(ctx, headers)
}

// traceOf has the W3C headers of the context's span; none where there is no span.
func traceOf(ctx context.Context) propagation.MapCarrier {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier
}

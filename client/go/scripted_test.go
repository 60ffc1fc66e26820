package lineside

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// scripted answers as a test says, over a real connection: what a real service says only while it drains or breaks.
type scripted struct {
	pb.UnimplementedDispatchServiceServer
	pb.UnimplementedToolServiceServer
	onDispatch func(ctx context.Context, sending int) error // sendings count from 1; nil: answered
	onBatch    func(number int, stream pb.DispatchService_DispatchBatchServer) error

	mu      sync.Mutex
	sent    []*pb.ToolCall
	at      []time.Time
	streams int
	reads   int
}

func (s *scripted) serve(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterDispatchServiceServer(server, s)
	pb.RegisterToolServiceServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func (s *scripted) Dispatch(ctx context.Context, request *pb.DispatchRequest) (*pb.DispatchResponse, error) {
	s.mu.Lock()
	s.sent, s.at = append(s.sent, request.GetCall()), append(s.at, time.Now())
	sending := len(s.sent)
	s.mu.Unlock()
	if err := s.onDispatch(ctx, sending); err != nil {
		return nil, err
	}
	return &pb.DispatchResponse{Answer: answered()}, nil
}

func (s *scripted) DispatchBatch(stream pb.DispatchService_DispatchBatchServer) error {
	s.mu.Lock()
	s.streams++
	number := s.streams
	s.mu.Unlock()
	return s.onBatch(number, stream)
}

func (s *scripted) ListTools(context.Context, *pb.ListToolsRequest) (*pb.ListToolsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return nil, status.Error(codes.Unavailable, "try another")
}

func (s *scripted) sendings() []*pb.ToolCall {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

func answered() *pb.ToolAnswer {
	return &pb.ToolAnswer{ResultForm: &pb.ToolAnswer_ResultJson{ResultJson: []byte("1")}, CallId: "c", Attempts: 1}
}

// answer writes an answer for each call.
func answer(stream pb.DispatchService_DispatchBatchServer, calls ...*pb.ToolCall) error {
	response := &pb.DispatchBatchResponse{}
	for _, call := range calls {
		response.Items = append(response.Items, &pb.BatchItem{ItemId: call.GetItemId(), Outcome: &pb.BatchItem_Answer{Answer: answered()}})
	}
	return stream.Send(response)
}

// answerAll answers everything until the caller half-closes.
func answerAll(stream pb.DispatchService_DispatchBatchServer, heard func(*pb.ToolCall)) error {
	for {
		frame, err := stream.Recv()
		if err != nil {
			return nil
		}
		for _, call := range frame.GetCalls() {
			heard(call)
		}
		if err := answer(stream, frame.GetCalls()...); err != nil {
			return err
		}
	}
}

// refusal is an error as the service writes one about a call that did not run.
func refusal(code codes.Code, kind pb.ErrorKind, more ...protoadapt.MessageV1) error {
	details := append([]protoadapt.MessageV1{
		protoadapt.MessageV1Of(&errdetails.ErrorInfo{Reason: "SCRIPTED", Domain: "lineside"}),
		protoadapt.MessageV1Of(&pb.DispatchError{Kind: kind, Message: "as the test says", Outcome: pb.Outcome_OUTCOME_NOT_RUN}),
	}, more...)
	rich, err := status.New(code, "as the test says").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return rich.Err()
}

func draining() error {
	hint := &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}
	return refusal(codes.Unavailable, pb.ErrorKind_ERROR_KIND_UNAVAILABLE, protoadapt.MessageV1Of(hint))
}

// withPushback is the error, with the trailer that says when to send again.
func withPushback(ctx context.Context, millis string, err error) error {
	if failed := grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", millis)); failed != nil {
		return failed
	}
	return err
}

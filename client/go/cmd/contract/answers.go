package main

import (
	"encoding/json"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	lineside "github.com/lineside/lineside/client/go"
	pb "github.com/lineside/lineside/client/go/linesidev1"
)

// ended is how a call or an RPC ended.
type ended struct {
	Code     string            `json:"code"`
	Response json.RawMessage   `json:"response,omitempty"`
	Message  *string           `json:"message,omitempty"`
	Details  []json.RawMessage `json:"details,omitzero"`

	Kind       string `json:"kind,omitempty"`
	Outcome    string `json:"outcome,omitempty"`
	Attempts   *int32 `json:"attempts,omitempty"`
	PushbackMS *int64 `json:"pushback_ms,omitempty"`
}

func succeeded(response proto.Message) (*ended, error) {
	text, err := asJSON(response)
	return &ended{Code: codeName(codes.OK), Response: text}, err
}

// failed is what the status says.
func failed(failure *lineside.Error) (*ended, error) {
	told := &ended{Code: codeName(failure.Code), Message: &failure.Message, Details: []json.RawMessage{}}
	for _, detail := range failure.GRPCStatus().Proto().GetDetails() {
		text, err := asJSON(detail)
		if err != nil {
			return nil, err
		}
		told.Details = append(told.Details, text)
	}
	if pushback, said := failure.Pushback(); said {
		millis := pushback.Milliseconds()
		told.PushbackMS = &millis
	}
	return told, nil
}

// failedCall is that, and what the client's own error type says of the call.
func failedCall(failure *lineside.Error) (*ended, error) {
	told, err := failed(failure)
	if err != nil {
		return nil, err
	}
	if failure.Kind != pb.ErrorKind_ERROR_KIND_UNSPECIFIED {
		told.Kind = failure.Kind.String()
	}
	if failure.Outcome != pb.Outcome_OUTCOME_UNSPECIFIED {
		told.Outcome = failure.Outcome.String()
	}
	if failure.Dispatch != nil {
		attempts := failure.Dispatch.GetAttempts()
		told.Attempts = &attempts
	}
	return told, nil
}

// stream is how a batch went.
type stream struct {
	Code        string       `json:"code"`
	Message     string       `json:"message"`
	Items       []item       `json:"items"`
	FrameErrors []frameError `json:"frame_errors"`
}

type item struct {
	ItemID   string          `json:"item_id"`
	Response json.RawMessage `json:"response,omitempty"`
	Error    *ended          `json:"error,omitempty"`
}

type frameError struct {
	Frame int64  `json:"frame"`
	Error *ended `json:"error"`
}

func newStream() *stream {
	return &stream{Code: codeName(codes.OK), Items: []item{}, FrameErrors: []frameError{}}
}

func (s *stream) item(id string, answer *pb.ToolAnswer, failure *lineside.Error) (err error) {
	one := item{ItemID: id}
	if failure != nil {
		one.Error, err = failedCall(failure)
	} else {
		one.Response, err = asJSON(answer)
	}
	s.Items = append(s.Items, one)
	return err
}

// hear takes in what the service wrote on a stream of the stub's.
func (s *stream) hear(response *pb.DispatchBatchResponse) error {
	for _, told := range response.GetItems() {
		var failure *lineside.Error
		if told.GetError() != nil {
			failure = lineside.FromStatus(told.GetError())
		}
		if err := s.item(told.GetItemId(), told.GetAnswer(), failure); err != nil {
			return err
		}
	}
	if refused := response.GetFrameError(); refused != nil {
		told, err := failedCall(lineside.FromStatus(refused.GetStatus()))
		if err != nil {
			return err
		}
		s.FrameErrors = append(s.FrameErrors, frameError{Frame: refused.GetFrame(), Error: told})
	}
	return nil
}

func (s *stream) end(err error) {
	said := status.Convert(err)
	s.Code, s.Message = codeName(said.Code()), said.Message()
}

// codeName is gRPC's name of a code, NOT_FOUND; this package's own String says NotFound.
func codeName(number codes.Code) string { return code.Code(number).String() }

// asJSON is proto3 JSON with the proto's field names.
func asJSON(message proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
}
